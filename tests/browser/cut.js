() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const inScroll = (element) => {
    for (let one = element.parentElement; one; one = one.parentElement) if (scrolls(one)) return true;
    return false;
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("script, noscript, title, [hidden], .drawing svg")) continue;
    const isCut = element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === "hidden";
    const hasWords = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect();
    const isOut = box.width > 0 && (box.left < -1 || box.right > wide + 1) && !inScroll(element);
    const isSeen = hasWords || element.matches("svg, input, button");
    if (isCut || (isSeen && isOut)) found.push(element.outerHTML.slice(0, 90));
  }
  for (const svg of document.querySelectorAll(".plot svg")) {
    const frame = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const over = [frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom];
      if (Math.max(...over) > 1) found.push(`${text.textContent} leaves its picture`);
    }
  }
  return found;
}
