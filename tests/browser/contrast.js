() => {
  const painted = (color) => color !== "none" && !/, 0\)$/.test(color);
  const hidden = (element) => element.closest("[hidden], noscript, script") || !element.getClientRects().length;
  const behind = (element) => {
    const found = [];
    for (let one = element; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (painted(color)) found.push(color);
      if (color.startsWith("rgb(")) return found;
    }
    return [...found, "rgb(255, 255, 255)"];
  };
  const words = [...document.body.querySelectorAll("*")]
    .filter((element) => !element.closest(".drawing svg, title") && !hidden(element))
    .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((element) => {
      const style = getComputedStyle(element);
      return [element.textContent, element.namespaceURI.endsWith("svg") ? style.fill : style.color, behind(element)];
    });
  const fields = [...document.querySelectorAll("input")].filter((element) => !hidden(element)).map((element) =>
    [element.placeholder, getComputedStyle(element, "::placeholder").color, behind(element)]);
  const outlines = [...document.querySelectorAll('.drawing g[id*="-text_"]')].map((text) => {
    text.scrollIntoView({ block: "center", inline: "center" });
    const letter = text.querySelector("use, path");
    const box = text.getBoundingClientRect();
    const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const found = [];
    for (const one of under.filter((one) => !text.contains(one) && one.tagName !== "svg")) {
      const style = getComputedStyle(one);
      const isShape = one.namespaceURI.endsWith("svg");
      if (isShape && one.tagName !== "image" && painted(style.fill)) {
        const opacity = Number(style.fillOpacity) * Number(style.opacity);
        found.push(style.fill.replace("rgb(", "rgba(").replace(")", `, ${opacity})`));
        if (opacity === 1) break;
      }
      if (!isShape) {
        found.push(...behind(one));
        break;
      }
    }
    return [text.id, getComputedStyle(letter ?? text).fill, found];
  });
  return [...words, ...fields, ...outlines];
}
