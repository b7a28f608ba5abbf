// Texts whose contrast to what is behind them is below 4.5, as WCAG 2.2 counts it. `by`: how tokens are coloured.
(by) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const part = (x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (each) => {
    const colour = getComputedStyle(each).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" && each.parentElement ? ground(each.parentElement) : colour;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  document.querySelectorAll(`.${by}`).forEach((each) => { each.checked = true; });
  while (texts.nextNode()) {
    const each = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !each.checkVisibility() || each.closest("option, noscript, svg")) continue;
    const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => b - a);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([texts.currentNode.data, (a + 0.05) / (b + 0.05)]);
  }
  return faint;
}
