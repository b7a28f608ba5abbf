// The pages work without this: it shows a chart's values beside the pointer, and lets the page of a growing run grow.
"use strict";

function hover(svg) {
  const {frame: [x0, x1, left, right, width], series} = JSON.parse(svg.dataset.chart);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  svg.parentElement.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * width;
    const x = x0 + (at - left) / (right - left) * (x1 - x0);
    const nearest = (points) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
    const found = series.map(({name, points}) => [name, nearest(points)]);
    const step = nearest(found.map(([, point]) => point))[0];
    const lines = found.filter(([, point]) => point[0] === step).map(([name, point]) => `${name}  ${+point[1].toPrecision(4)}`);
    tip.textContent = [`step ${step}`, ...lines].join("\n");
    tip.hidden = false;
    const aside = at > width / 2;
    tip.style.left = aside ? "" : `${event.clientX - box.left + 14}px`;
    tip.style.right = aside ? `${box.right - event.clientX + 14}px` : "";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function prepare() {
  document.querySelectorAll("svg[data-chart]").forEach(hover);
}

async function grow() {
  const main = document.querySelector("main");
  const asked = await fetch(main.dataset.changes);
  if (!asked.ok || await asked.text() === main.dataset.seen) return;
  const busy = document.activeElement && document.activeElement.closest("form");
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
