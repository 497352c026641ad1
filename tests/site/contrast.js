least => {
  const rgba = text => {
    const found = text.match(/[\d.]+/g).map(Number);
    return text.startsWith("color(srgb") ? [...found.slice(0, 3).map(x => 255 * x), found[3] ?? 1]
      : [found[0], found[1], found[2], found[3] ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = rgb => {
    const [r, g, b] = rgb.map(x => x / 255).map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backs = new Map();
  const back = node => {
    if (!node) return rgba(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
    if (!backs.has(node)) {
      const own = rgba(getComputedStyle(node).backgroundColor);
      backs.set(node, own[3] === 1 ? own.slice(0, 3) : over(own, back(node.parentElement)));
    }
    return backs.get(node);
  };
  const bad = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const at = node.parentElement;
    if (!node.data.trim() || !at.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (at.closest(".md-search, .headerlink, script, style, noscript, .md-clipboard")) continue;
    const behind = back(at), style = getComputedStyle(at);
    const colour = over(rgba(at.closest("svg") ? style.fill : style.color), behind);
    const [a, b] = [light(colour), light(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const where = `${at.tagName}.${at.className?.baseVal ?? at.className}`;
    if (ratio < least) bad.set(where, `${node.data.trim()}: ${ratio}`);
  }
  return [...bad];
}
