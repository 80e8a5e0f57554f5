"use strict";
/* The policy simulator of docs/policy-simulator.md. The first half computes as `retry_topic.policy` does, and
   tests/docs/test_site.py compares the two; the second half draws. No library, no network. */

const LIMITS = { maxFactor: 100, maxDelayMs: 3_600_000, baseMs: 1_000, factor: 2 };

/* The first exponent at which the curve is above the cap. */
function highestExponent(baseMs, factor, capMs) {
  if (baseMs === 0 || factor === 1) return 0;
  return Math.ceil(Math.log(capMs / baseMs) / Math.log(factor)) + 1;
}

/* The exponential curve at an attempt, in whole ms, at most the cap. */
function curve(baseMs, factor, capMs, attempt) {
  const exponent = Math.min(Math.max(0, attempt - 1), highestExponent(baseMs, factor, capMs));
  return Math.min(Math.ceil(Number((baseMs * factor ** exponent).toFixed(3))), capMs);
}

/* The least and the greatest delay after a failed attempt. `previousMs` counts for decorrelated jitter alone. */
function range(policy, attempt, previousMs) {
  const { baseMs, factor, capMs, jitter } = policy;
  if (jitter === "decorrelated") {
    return [baseMs, 3 * Math.min(Math.max(previousMs || 0, baseMs), capMs)];
  }
  const high = curve(baseMs, factor, capMs, attempt);
  return [jitter === "full" ? 0 : jitter === "equal" ? Math.floor(high / 2) : high, high];
}

function draw(policy, attempt, previousMs, random) {
  const [low, high] = range(policy, attempt, previousMs);
  return Math.min(low + Math.floor(random() * (high - low + 1)), policy.capMs);
}

/* mulberry32: equal settings give equal pictures. */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/* Let `herd` messages arrive at time 0. Each attempt fails with the probability `failing`. */
function simulate(policy, herd, failing, seed) {
  const random = generator(seed);
  const arrivals = [];
  let dead = 0;
  for (let message = 0; message < herd; message += 1) {
    let now = 0;
    let previous = null;
    for (let attempt = 1; ; attempt += 1) {
      if (attempt > 1) arrivals.push(now);
      if (random() >= failing) break;
      if (attempt >= policy.attempts) { dead += 1; break; }
      previous = draw(policy, attempt, previous, random);
      now += previous;
    }
  }
  arrivals.sort((a, b) => a - b);
  return { arrivals, dead, done: herd - dead };
}

/* How many arrivals each of `count` equal parts of the time has. */
function buckets(arrivals, count) {
  const last = arrivals.length ? arrivals[arrivals.length - 1] : 0;
  const width = Math.max(1, Math.ceil((last + 1) / count));
  const heights = new Array(count).fill(0);
  for (const at of arrivals) heights[Math.floor(at / width)] += 1;
  return { width, heights };
}

function duration(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${Number((ms / 1_000).toFixed(1))} s`;
  if (ms < 7_200_000) return `${Number((ms / 60_000).toFixed(1))} min`;
  return `${Number((ms / 3_600_000).toFixed(1))} h`;
}

/* ---- the page ---- */

const SVG = "http://www.w3.org/2000/svg";
const FRAME = { left: 56, right: 8, top: 12, bottom: 40, width: 640, height: 300, bars: 60 };

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function paint(chart, result) {
  const { left, right, top, bottom, width, height, bars } = FRAME;
  const { width: step, heights } = buckets(result.arrivals, bars);
  const most = Math.max(1, ...heights);
  const wide = (width - left - right) / bars;
  const tall = height - top - bottom;
  const base = height - bottom;
  chart.replaceChildren(element("title", {}, "Arrivals of repeated attempts over time"));
  heights.forEach((count, index) => {
    const size = (tall * count) / most;
    chart.append(element("rect", {
      class: "bar", x: left + index * wide, y: base - size, width: Math.max(1, wide - 1), height: size,
    }));
  });
  for (let tick = 0; tick <= 4; tick += 1) {
    const x = left + ((width - left - right) * tick) / 4;
    chart.append(element("line", { class: "axis", x1: x, x2: x, y1: base, y2: base + 5 }));
    const anchor = tick === 0 ? "start" : tick === 4 ? "end" : "middle";
    chart.append(element("text", { x, y: base + 19, "text-anchor": anchor }, duration((step * bars * tick) / 4)));
  }
  for (const count of most > 1 ? [0, Math.round(most / 2), most] : [0, 1]) {
    const y = base - (tall * count) / most;
    chart.append(element("line", { class: "axis", x1: left - 5, x2: left, y1: y, y2: y }));
    chart.append(element("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, String(count)));
  }
  chart.append(element("path", { class: "axis", d: `M${left} ${top}V${base}H${width - right}` }));
  chart.append(element("text", { x: width / 2, y: height - 4, "text-anchor": "middle" },
    `time since the herd failed (a bar is ${duration(step)})`));
  return { step, most };
}

function start() {
  const form = document.getElementById("settings");
  const chart = document.getElementById("chart");
  const said = document.getElementById("said");
  const update = () => {
    const value = (name) => Number(form.elements[name].value);
    const policy = {
      baseMs: Math.round(10 ** value("base")),
      factor: value("factor"),
      capMs: Math.round(10 ** value("cap")),
      attempts: value("attempts"),
      jitter: form.elements.jitter.value,
    };
    policy.capMs = Math.max(policy.capMs, policy.baseMs);
    const herd = Math.round(10 ** value("herd"));
    const failing = value("failing") / 100;
    const shown = {
      base: duration(policy.baseMs), factor: String(policy.factor), cap: duration(policy.capMs),
      attempts: String(policy.attempts), failing: `${value("failing")} %`, herd: String(herd),
    };
    for (const [name, text] of Object.entries(shown)) form.elements[`${name}-shown`].value = text;
    form.elements.factor.disabled = policy.jitter === "decorrelated";
    const result = simulate(policy, herd, failing, 1);
    const { step, most } = paint(chart, result);
    const last = result.arrivals.length ? duration(result.arrivals[result.arrivals.length - 1]) : "never";
    said.textContent = `${herd} messages: ${result.done} succeed, ${result.dead} are dead letters. ` +
      `${result.arrivals.length} repeated attempts; at most ${most} of them within ${duration(step)}; the last after ${last}.`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

if (typeof document === "undefined") module.exports = { LIMITS, curve, range, draw, simulate, buckets };
else start();
