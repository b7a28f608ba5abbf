// Draws the charts, and lets the page of a growing run grow. Without it, everything else of the pages works.
"use strict";

const WIDTH = 460, HEIGHT = 220, LEFT = 52, RIGHT = WIDTH - 10, TOP = 20, BOTTOM = HEIGHT - 34;
const view = {smoothing: 0, from: -Infinity, to: Infinity};  // of all charts: they share their steps

function add(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

function ticks(low, high, least = 0) {
  const raw = Math.max((high - low) / 5, least), power = 10 ** Math.floor(Math.log10(raw));
  const width = power * [1, 2, 5, 10].find((factor) => power * factor >= raw * 0.999);
  const first = Math.ceil(low / width - 1e-9), count = Math.floor(high / width + 1e-9) - first + 1;
  return Array.from({length: Math.min(count, 20)}, (_, index) => (first + index) * width);
}

function label(value, unit) {
  if (unit === "%") return `${+(100 * value).toPrecision(3)}%`;
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e6 ? `${+(value / 1000).toPrecision(4)}k` : `${+value.toPrecision(4)}`;
}

function smoothed(points) {  // an exponential moving average that does not begin at 0
  let sum = 0, weight = 0;
  return points.map(([x, y]) => {
    sum = view.smoothing * sum + (1 - view.smoothing) * y;
    weight = view.smoothing * weight + (1 - view.smoothing);
    return [x, sum / weight];
  });
}

function stacked(series) {
  const steps = [...new Set(series.flatMap(({points}) => points.map(([x]) => x)))].sort((a, b) => a - b);
  let low = steps.map(() => 0);
  return series.map(({colour, points}) => {
    const values = new Map(points), high = low.map((y, index) => y + (values.get(steps[index]) ?? 0));
    const outline = [steps.map((x, index) => [x, high[index]]), steps.map((x, index) => [x, low[index]]).reverse()];
    low = high;
    return {colour, points: steps.length > 1 ? outline.flat()  // a bar, where an area would have no width
      : outline.flatMap(([[x, y]], index) => index ? [[x + 0.3, y], [x - 0.3, y]] : [[x - 0.3, y], [x + 0.3, y]])};
  });
}

function draw(figure) {
  const {shape, unit, bounds, series} = JSON.parse(figure.dataset.chart);
  const visible = ([x]) => x >= view.from && x <= view.to;
  const shown = series.map((each) => ({...each, points: each.points.filter(visible)}));
  const lines = shape === "area" ? stacked(shown)
    : series.map((each) => ({...each, points: smoothed(each.points).filter(visible)}));
  const all = [...lines, ...shown].flatMap(({points}) => points), xs = all.map(([x]) => x);
  const ys = [...all.map(([, y]) => y), ...(shape === "area" ? [0] : view.from === -Infinity ? bounds : [])];
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  figure.querySelectorAll("svg, .tip").forEach((each) => each.remove());
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  figure.querySelector("figcaption").after(svg);
  for (const [name, value] of [["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["role", "img"]]) svg.setAttribute(name, value);
  svg.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
  if (!xs.length) return;
  let [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = y0 === 0 ? [0, 1] : [y0 - Math.abs(y0) / 2, y1 + Math.abs(y1) / 2];
  const left = (x) => LEFT + (x - x0) / (x1 - x0) * (RIGHT - LEFT), top = (y) => BOTTOM - (y - y0) / (y1 - y0) * (BOTTOM - TOP);
  const places = (points) => points.map(([x, y]) => `${left(x).toFixed(1)},${top(y).toFixed(1)}`).join(" ");
  for (const y of ticks(y0, y1)) {
    add(svg, "line", {x1: LEFT, x2: RIGHT, y1: top(y), y2: top(y), class: "grid"});
    add(svg, "text", {x: LEFT - 6, y: top(y), class: "left"}, label(y, unit));
  }
  for (const x of ticks(x0, x1, 1)) add(svg, "text", {x: left(x), y: BOTTOM + 16, class: "below"}, label(x));
  add(svg, "text", {x: (LEFT + RIGHT) / 2, y: HEIGHT - 4, class: "below"}, "step");
  if (unit !== "%") add(svg, "text", {x: 0, y: 10}, unit);
  if (shape === "line" && view.smoothing) {
    for (const {colour, points} of shown) add(svg, "polyline", {points: places(points), class: `raw c${colour}`});
  }
  for (const {colour, points} of lines) {
    if (shape === "line" && points.length === 1) {
      add(svg, "circle", {cx: left(points[0][0]), cy: top(points[0][1]), r: 3, class: `dot c${colour}`});
    } else if (points.length) {
      add(svg, shape === "line" ? "polyline" : "polygon", {points: places(points), class: `${shape} c${colour}`});
    }
  }
  point(figure, svg, shown, (share) => x0 + (share * WIDTH - LEFT) / (RIGHT - LEFT) * (x1 - x0), left, unit);
}

function point(figure, svg, series, stepAt, left, unit) {  // values beside the pointer; what it is drawn over is zoomed
  const tip = add(figure, "div", {class: "tip"}), mark = add(svg, "rect", {y: TOP, height: BOTTOM - TOP, class: "mark"});
  tip.hidden = true;
  let begun = null;
  const at = (event) => stepAt((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width);
  const stretch = (from, to) => {
    mark.setAttribute("x", left(Math.min(from, to)));
    mark.setAttribute("width", Math.max(1, Math.abs(left(to) - left(from))));
  };
  svg.addEventListener("pointerdown", (event) => { begun = at(event); event.preventDefault(); });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = at(event);
    const nearest = (points) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
    const found = series.filter(({points}) => points.length).map(({name, points}) => [name, nearest(points)]);
    const step = nearest(found.map(([, each]) => each))[0];
    const lines = found.filter(([, each]) => each[0] === step).map(([name, each]) => `${name}  ${label(each[1], unit)}`);
    tip.textContent = [`step ${step}`, ...lines].join("\n");
    tip.hidden = false;
    const aside = event.clientX - box.left > box.width / 2;
    tip.style.left = aside ? "" : `${event.clientX - box.left + 14}px`;
    tip.style.right = aside ? `${box.right - event.clientX + 14}px` : "";
    stretch(begun ?? step, begun === null ? step : x);
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; begun = null; mark.setAttribute("width", 0); });
  svg.addEventListener("pointerup", (event) => {
    const [from, to] = [begun, at(event)].sort((a, b) => a - b);
    if (begun !== null && left(to) - left(from) > 8) show({from: Math.ceil(from), to: Math.floor(to)});
    begun = null;
  });
  svg.addEventListener("dblclick", () => show({from: -Infinity, to: Infinity}));
}

function show(change) {
  const wanted = {...view, ...change};
  if (wanted.from > wanted.to) return;
  Object.assign(view, wanted);
  document.querySelectorAll("figure[data-chart]").forEach(draw);
  document.querySelectorAll(".smoothing").forEach((each) => { each.value = view.smoothing; });
  document.querySelectorAll(".whole").forEach((each) => { each.hidden = view.from === -Infinity; });
}

function prepare() {
  for (const charts of document.querySelectorAll(".charts")) {
    const tools = document.createElement("p");
    tools.className = "tools dim";
    const named = add(tools, "label", {}, "smoothing");
    const input = add(named, "input", {type: "range", min: 0, max: 0.95, step: 0.05, class: "smoothing"});
    input.addEventListener("input", () => show({smoothing: +input.value}));
    add(tools, "span", {}, "Drag over a chart to zoom.");
    add(tools, "button", {type: "button", class: "whole"}, "all steps")
      .addEventListener("click", () => show({from: -Infinity, to: Infinity}));
    charts.before(tools);
  }
  show({});
}

async function grow() {
  const main = document.querySelector("main");
  const asked = await fetch(main.dataset.changes);
  if (!asked.ok || await asked.text() === main.dataset.seen) return;
  const busy = document.activeElement && document.activeElement.closest("form, .tools");
  if (busy || String(getSelection()) !== "" || document.querySelector(".tip:not([hidden])")) return;
  const page = await fetch(location.href);
  if (!page.ok) return;
  const fresh = new DOMParser().parseFromString(await page.text(), "text/html").querySelector("main");
  const open = [...document.querySelectorAll("details")].map((each) => each.open);
  main.replaceWith(fresh);
  document.querySelectorAll("details").forEach((each, index) => { if (index in open) each.open = open[index]; });
  prepare();
}

prepare();
if (document.querySelector("main").dataset.changes) {
  setInterval(() => { grow().catch(() => {}); }, 3000);  // a server that is gone may come back
}
