// Draws the charts, and lets the page of a growing run grow. Without it, everything else of the pages works.
"use strict";

const WIDTH = 460, HEIGHT = 220, LEFT = 52, RIGHT = WIDTH - 10, TOP = 20, BOTTOM = HEIGHT - 34;
const asked = new URLSearchParams(location.search);
const step = (name, otherwise) => asked.get(name) ? Number(asked.get(name)) || 0 : otherwise;
const view = {  // of all charts: they share their steps
  smoothing: Math.min(Math.max(step("smoothing", 0), 0), 0.95),
  from: step("first", -Infinity), to: step("last", Infinity),
  open: asked.get("open")?.split(",") ?? null,  // groups, once one was opened or closed
};

function inAddress() {  // what makes the view, as values of the address; null: not there
  return {
    smoothing: view.smoothing || null, first: view.from === -Infinity ? null : view.from,
    last: view.to === Infinity ? null : view.to, open: view.open === null ? null : view.open.join(","),
  };
}

function remember() {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(inAddress())) {
    if (value === null) address.searchParams.delete(name); else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}

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

function shown(value, unit) {  // as the server writes it into a legend
  if (unit === "%") return `${(100 * value).toFixed(1)}%`;
  const word = {seconds: " s", nats: " nats", tokens: " tokens"}[unit] ?? "";
  if (Math.abs(value) >= 1000) return value.toLocaleString("en", {maximumFractionDigits: 0}) + word;
  return (unit === "seconds" ? value.toFixed(2) : `${+value.toPrecision(4)}`) + word;
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
  const inView = series.map((each) => ({...each, points: each.points.filter(visible)}));
  const lines = shape === "area" ? stacked(inView)
    : series.map((each) => ({...each, points: smoothed(each.points).filter(visible)}));
  const all = [...lines, ...inView].flatMap(({points}) => points), xs = all.map(([x]) => x);
  const ys = [...all.map(([, y]) => y), ...(shape === "area" ? [0] : view.from === -Infinity ? bounds : [])];
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  figure.querySelectorAll(":scope > svg, .tip").forEach((each) => each.remove());
  figure.querySelectorAll(".legend b").forEach((each, index) => {
    const {points} = inView[index];
    each.textContent = points.length ? shown(points[points.length - 1][1], unit) : "-";
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  figure.querySelector(".legend").before(svg);
  const title = figure.querySelector("figcaption").textContent;
  for (const [name, value] of [["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["role", "img"], ["aria-label", title]]) svg.setAttribute(name, value);
  if (!xs.length) return;
  let [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
  const only = x0 === x1 ? [x0] : null;
  if (only) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = y0 === 0 ? [0, 1] : [y0 - Math.abs(y0) / 2, y1 + Math.abs(y1) / 2];
  const left = (x) => LEFT + (x - x0) / (x1 - x0) * (RIGHT - LEFT), top = (y) => BOTTOM - (y - y0) / (y1 - y0) * (BOTTOM - TOP);
  const places = (points) => points.map(([x, y]) => `${left(x).toFixed(1)},${top(y).toFixed(1)}`).join(" ");
  for (const y of ticks(y0, y1)) {
    add(svg, "line", {x1: LEFT, x2: RIGHT, y1: top(y), y2: top(y), class: "grid"});
    add(svg, "text", {x: LEFT - 6, y: top(y), class: "left"}, label(y, unit));
  }
  for (const x of only ?? ticks(x0, x1, 1)) add(svg, "text", {x: left(x), y: BOTTOM + 16, class: "below"}, label(x));
  add(svg, "text", {x: (LEFT + RIGHT) / 2, y: HEIGHT - 4, class: "below"}, "step");
  if (unit !== "%") add(svg, "text", {x: 0, y: 10}, unit);
  if (shape === "line" && view.smoothing) {
    for (const {colour, points} of inView) add(svg, "polyline", {points: places(points), class: `raw ${colour}`});
  }
  for (const {colour, dash, points} of lines) {
    if (shape === "line" && points.length === 1) {
      add(svg, "circle", {cx: left(points[0][0]), cy: top(points[0][1]), r: 3, class: `dot ${colour}`});
    } else if (points.length) {
      add(svg, shape === "line" ? "polyline" : "polygon", {points: places(points), class: `${shape} ${colour} d${(dash ?? 0) % 6}`});
    }
  }
  point(figure, svg, inView, (share) => x0 + (share * WIDTH - LEFT) / (RIGHT - LEFT) * (x1 - x0), left, unit);
}

// Values beside the pointer or, by arrow keys, of a step; what the pointer is drawn over, or Shift and an arrow marks, is zoomed.
function point(figure, svg, series, stepAt, left, unit) {
  const tip = add(figure, "div", {class: "tip", role: "status"}), mark = add(svg, "rect", {y: TOP, height: BOTTOM - TOP, class: "mark"});
  const steps = [...new Set(series.flatMap(({points}) => points.map(([x]) => x)))].sort((a, b) => a - b);
  let begun = null, at = null;
  tip.hidden = true;
  svg.tabIndex = 0;
  const stretch = (from, to) => {
    mark.setAttribute("x", left(Math.min(from, to)));
    mark.setAttribute("width", Math.max(1, Math.abs(left(to) - left(from))));
  };
  const say = (x, to = x) => {
    at = steps.reduce((a, b) => Math.abs(b - x) < Math.abs(a - x) ? b : a);
    const values = series.map(({name, points}) => [name, points.find(([other]) => other === at)]);
    tip.textContent = [`step ${at}`, ...values.filter(([, each]) => each).map(([name, each]) => `${name}  ${shown(each[1], unit)}`)].join("\n");
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), place = left(at) / WIDTH * box.width, aside = place > box.width / 2;
    tip.style.top = `${svg.getBoundingClientRect().top - figure.getBoundingClientRect().top + 4}px`;
    tip.style.left = aside ? "" : `${place + 14}px`;
    tip.style.right = aside ? `${box.width - place + 14}px` : "";
    stretch(begun ?? at, begun === null ? at : to);
  };
  const silent = () => { tip.hidden = true; begun = null; mark.setAttribute("width", 0); };
  const zoom = (from, to) => show({from: Math.ceil(Math.min(from, to)), to: Math.floor(Math.max(from, to))});
  const pointed = (event) => stepAt((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width);
  svg.addEventListener("pointerdown", (event) => { begun = pointed(event); event.preventDefault(); });
  svg.addEventListener("pointermove", (event) => say(pointed(event), pointed(event)));
  svg.addEventListener("pointerleave", silent);
  svg.addEventListener("pointerup", (event) => {
    if (begun !== null && Math.abs(left(pointed(event)) - left(begun)) > 8) zoom(begun, pointed(event));
    begun = null;
  });
  svg.addEventListener("dblclick", () => show({from: -Infinity, to: Infinity}));
  svg.addEventListener("blur", silent);
  svg.addEventListener("keydown", (event) => {
    const place = at === null ? steps.length - 1 : steps.indexOf(at);
    const next = {ArrowLeft: at === null ? place : place - 1, ArrowRight: place + 1, Home: 0, End: steps.length - 1}[event.key];
    if (next !== undefined) {
      begun = event.shiftKey ? begun ?? steps[place] : null;
      say(steps[Math.min(Math.max(next, 0), steps.length - 1)]);
    } else if (event.key === "Enter" && begun !== null && begun !== at) zoom(begun, at);
    else if (event.key === "Escape") { silent(); show({from: -Infinity, to: Infinity}); }
    else return;
    event.preventDefault();
  });
}

function show(change) {
  const wanted = {...view, ...change}, focused = document.activeElement?.closest("figure[data-chart]");
  if (wanted.from > wanted.to) return;
  Object.assign(view, wanted);
  document.querySelectorAll("figure[data-chart]").forEach(draw);
  if (focused) focused.querySelector("svg[tabindex]")?.focus({preventScroll: true});
  document.querySelectorAll(".smoothing").forEach((each) => { each.value = view.smoothing; });
  document.querySelectorAll(".whole").forEach((each) => { each.hidden = view.from === -Infinity; });
  if (Object.keys(change).length) remember();
}

function save(name, rows) {  // as a CSV file; a text that a spreadsheet would calculate is quoted
  const cell = (value) => {
    const text = String(value ?? ""), safe = isNaN(text) && /^[-=+@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const file = new Blob([rows.map((row) => row.map(cell).join(",") + "\r\n").join("")], {type: "text/csv"});
  const link = add(document.body, "a", {href: URL.createObjectURL(file), download: `${name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.csv`});
  link.click();
  link.remove();
  URL.revokeObjectURL(link.href);
}

function saveChart(figure) {
  const {series} = JSON.parse(figure.dataset.chart), values = series.map(({points}) => new Map(points));
  const steps = [...new Set(values.flatMap((each) => [...each.keys()]))].sort((a, b) => a - b);
  const rows = steps.map((step) => [step, ...values.map((each) => each.get(step))]);
  save(figure.querySelector("figcaption").textContent, [["step", ...series.map(({name}) => name)], ...rows]);
}

function saveTable(table) {
  const title = [...document.querySelectorAll("h1, h2")].filter((each) => each.compareDocumentPosition(table) & 4).pop();
  save(title.textContent, [...table.rows].map((row) => [...row.cells].map((each) => each.textContent.trim())));
}

function copy(element, button) {  // by the selection, which works without a secure context too
  getSelection().selectAllChildren(element);
  button.textContent = document.execCommand("copy") ? "copied" : "not allowed";
  getSelection().removeAllRanges();
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

function connect(graph) {  // draws the lines between the boxes of a lineage
  graph.querySelector("svg")?.remove();
  const boxes = new Map([...graph.querySelectorAll(".node")].map((each) => [each.dataset.id, each])), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["width", graph.scrollWidth], ["height", graph.scrollHeight], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
  for (const [parent, child] of JSON.parse(graph.dataset.edges)) {
    const [from, to] = [boxes.get(parent), boxes.get(child)], middle = (each) => each.offsetTop + each.offsetHeight / 2;
    const start = from.offsetLeft + from.offsetWidth, end = to.offsetLeft, half = (start + end) / 2;
    add(svg, "path", {d: `M${start},${middle(from)} C${half},${middle(from)} ${half},${middle(to)} ${end},${middle(to)}`, class: "edge"});
  }
  graph.append(svg);
}

function prepare() {
  for (const curves of document.querySelectorAll(".curves")) {
    const tools = document.createElement("p");
    tools.className = "tools dim";
    const named = add(tools, "label", {}, "smoothing");
    const input = add(named, "input", {type: "range", min: 0, max: 0.95, step: 0.05, class: "smoothing"});
    input.addEventListener("input", () => show({smoothing: +input.value}));
    add(tools, "span", {}, "Drag over a chart to zoom. By keyboard: arrows, Shift and arrows, Enter, Escape.");
    add(tools, "button", {type: "button", class: "whole"}, "all steps")
      .addEventListener("click", () => show({from: -Infinity, to: Infinity}));
    const groups = [...curves.querySelectorAll(".group")];
    if (groups.length) {
      add(tools, "button", {type: "button"}, "open or fold all").addEventListener("click", () => {
        const open = !groups.every((each) => each.open);
        groups.forEach((each) => { each.open = open; });
      });
    }
    if (view.open !== null) groups.forEach((each) => { each.open = view.open.includes(each.dataset.group); });
    const opened = () => groups.filter((each) => each.open).map((each) => each.dataset.group), before = String(opened());
    groups.forEach((each) => each.addEventListener("toggle", () => {
      if (!curves.isConnected || (view.open === null && String(opened()) === before)) return;
      view.open = opened();
      remember();
    }));
    curves.before(tools);
  }
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    add(figure, "button", {type: "button", class: "csv", title: "this chart's values as a CSV file"}, "CSV").addEventListener("click", () => saveChart(figure));
  }
  for (const table of document.querySelectorAll("main .wide > table")) {
    if (table.rows.length < 3 || table.closest("noscript")) continue;
    const button = document.createElement("button");
    button.className = "csv", button.type = "button", button.textContent = "CSV", button.title = "this table as a CSV file";
    button.addEventListener("click", () => saveTable(table));
    table.parentElement.after(button);
  }
  for (const text of document.querySelectorAll("main pre")) {
    const box = document.createElement("div");
    box.className = "copied";
    text.replaceWith(box);
    box.append(text);
    const button = add(box, "button", {type: "button", class: "copy"}, "copy");
    button.addEventListener("click", () => copy(text, button));
  }
  document.querySelectorAll(".lineage").forEach(connect);
  document.querySelectorAll("main form[method]").forEach((form) => form.addEventListener("formdata", (event) => {
    for (const [name, value] of Object.entries(inAddress())) if (value !== null) event.formData.set(name, value);
  }));
  show({});
}

async function grow() {
  const main = document.querySelector("main");
  const changes = await fetch(main.dataset.changes);
  if (!changes.ok || await changes.text() === main.dataset.seen) return;
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

window.addEventListener("resize", () => document.querySelectorAll(".lineage").forEach(connect));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "/") document.querySelector("main input[type=search]")?.focus();
  else if (event.key === "j" || event.key === "k") {
    const wanted = event.key === "j" ? "next" : "previous";
    [...document.querySelectorAll("main a")].find((each) => each.textContent === wanted)?.click();
  } else return;
  event.preventDefault();
});

prepare();
if (document.querySelector("main").dataset.changes) {
  setInterval(() => { grow().catch(() => {}); }, 3000);  // a server that is gone may come back
}
