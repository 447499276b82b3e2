"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const msOf = (ticks) => ticks * data.tick_ns / 1e6;
const CATEGORIES = [
  ["f", "forward"], ["b", "backward"], ["i", "input half"], ["w", "weight half"], ["v", "validation"],
  ["u", "update"], ["s", "sums"], ["a", "actor at work"], ["wait", "wait"], ["call", "call"], ["p", "pair"]];
const KINDS = ["work", "message", "wait", "unknown"];

// ---- Data: columns become typed arrays.

function column(text, Type) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
}
for (const rank of data.ranks) {
  for (const lane of rank.lanes) {
    lane.begin = column(lane.begin, Uint32Array);
    lane.length = column(lane.length, Uint32Array);
    lane.names = column(lane.names, Uint16Array);
    lane.categories = column(lane.categories, Uint8Array);
    lane.keys = column(lane.keys, Int32Array);
  }
  rank.open = false;
}
const messages = data.messages;
for (const name of ["begin", "end"]) messages[name] = column(messages[name], Uint32Array);
for (const name of ["from", "to"]) messages[name] = column(messages[name], Uint16Array);
for (const name of ["from_lane", "to_lane"]) messages[name] = column(messages[name], Uint8Array);
messages.longest = 0;
for (let i = 0; i < messages.n; ++i) messages.longest = Math.max(messages.longest, messages.end[i] - messages.begin[i]);

/** The first index from `from` on whose value is at least `value`. */
function lowerBound(values, value, from = 0) {
  let to = values.length;
  while (from < to) {
    const middle = from + to >> 1;
    if (values[middle] < value) from = middle + 1; else to = middle;
  }
  return from;
}

const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const meanOf = (step, member) => sumOf(step.ranks.map((rank) => rank[member])) / step.ranks.length;
const overlapOf = (step) => {
  const flight = meanOf(step, "in_flight");
  return flight > 0 ? meanOf(step, "overlapped") / flight : NaN;
};
const number = (value, digits = 1) => value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const percent = (part) => Number.isFinite(part) ? `${number(100 * part, part < 0.0995 ? 1 : 0)} %` : "\u2013";
function duration(ms) {
  if (Math.abs(ms) < 1e-9) return "0";
  if (ms >= 1000) return `${number(ms / 1000, 2)} s`;
  if (ms >= 1) return `${number(ms, ms < 10 ? 2 : 1)} ms`;
  return `${number(ms * 1000, 1)} \u00b5s`;
}
function element(tag, text = "", properties = {}) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("--")) made.style.setProperty(name, value); else made[name] = value;
  }
  return made;
}

// ---- State.

const state = {begin: 0, end: Math.max(1, data.end), top: 0, step: 0, path: true, messages: true, plan: true, hover: null};
let colors = {};
function readColors() {
  const style = getComputedStyle(document.documentElement);
  colors = {};
  for (const name of ["page", "card", "line", "lane", "text", "soft", "f", "b", "i", "w", "v", "u", "s", "a", "p", "wait", "call", "path", "message"]) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colors.categories = CATEGORIES.map(([name]) => colors[name]);
}

// ---- The timeline.

const canvas = byId("timeline");
const pen = canvas.getContext("2d");
const GUTTER = 132, RULER = 30, ACTION = 24, PLAN = 9, THIN = 8, ACTOR = 15, BETWEEN = 14;
let width = 0, height = 0, contentHeight = 0, drawn = 0;

/** Where each lane is: [{rank, lane, y, height}], and each rank's first y. */
let rows = [], rankTops = [];
function layOut() {
  rows = [];
  rankTops = [];
  let y = RULER + 6;
  data.ranks.forEach((rank, r) => {
    rankTops.push(y);
    rank.lanes.forEach((lane, l) => {
      if (lane.n === 0 && l > 0) return;
      if (lane.kind === "plan" && !state.plan) return;
      if (lane.kind === "actor" && !rank.open) return;
      const h = lane.kind === "action" ? ACTION : lane.kind === "plan" ? PLAN : rank.open ? ACTOR : THIN;
      rows.push({rank: r, index: l, lane, y, height: h});
      y += h + 2;
    });
    y += BETWEEN;
  });
  contentHeight = y;
  width = canvas.clientWidth;
  height = Math.max(220, Math.min(contentHeight, Math.round(window.innerHeight * 0.62)));
  canvas.style.height = `${height}px`;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  state.top = Math.min(state.top, Math.max(0, contentHeight - height));
}
const scale = () => (width - GUTTER) / (state.end - state.begin);
const xOf = (ticks) => GUTTER + (ticks - state.begin) * scale();
const ticksAt = (x) => state.begin + (x - GUTTER) / scale();

/** Draws what of a lane is in view. Slices under a pixel share one; the search goes on behind it. */
function drawLane(row) {
  const {lane, height: h} = row;
  const y = row.y - state.top;
  if (y > height || y + h < RULER) return;
  pen.fillStyle = colors.lane;
  if (lane.kind !== "plan") pen.fillRect(GUTTER, y, width - GUTTER, h);
  const perTick = scale();
  const {begin, length, categories} = lane;
  pen.globalAlpha = lane.kind === "plan" ? 0.55 : lane.kind === "op" && !data.ranks[row.rank].open ? 0.8 : 1;
  let i = Math.max(0, lowerBound(begin, state.begin) - 1);
  while (i < lane.n && begin[i] <= state.end) {
    const x0 = GUTTER + (begin[i] - state.begin) * perTick;
    const x1 = x0 + length[i] * perTick;
    if (x1 < GUTTER) { ++i; continue; }
    pen.fillStyle = colors.categories[categories[i]];
    ++drawn;
    if (x1 - x0 < 1) {
      const pixel = Math.floor(x0);
      pen.fillRect(Math.max(GUTTER, pixel), y, 1, h);
      const behind = state.begin + (pixel + 1 - GUTTER) / perTick;
      const next = lowerBound(begin, behind, i + 1);
      i = next - 1 > i && begin[next - 1] + length[next - 1] > behind ? next - 1 : next;
      continue;
    }
    const left = Math.max(GUTTER, x0);
    const gap = x1 - x0 > 4 ? 1 : 0;
    pen.fillRect(left, y, Math.min(width, x1) - left - gap, h);
    if (lane.kind !== "plan" && h >= ACTOR && x1 - left > 26) drawLabel(lane, i, left, Math.min(width, x1), y, h);
    ++i;
  }
  pen.globalAlpha = 1;
}
function labelOf(lane, i) {
  const name = data.names[lane.names[i]];
  return lane.kind === "action" ? `${name} ${lane.keys[i]}` : name;
}
function drawLabel(lane, i, x0, x1, y, h) {
  const label = labelOf(lane, i);
  pen.font = `600 ${h >= ACTION ? 11.5 : 10}px Inter, system-ui, sans-serif`;
  if (pen.measureText(label).width + 10 > x1 - x0) return;
  pen.fillStyle = lane.categories[i] === 8 ? colors.text : "#fff";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText(label, x0 + 5, y + h / 2 + 0.5);
}

function niceStep(ticks) {
  const ms = msOf(ticks);
  const power = 10 ** Math.floor(Math.log10(ms));
  const nice = [1, 2, 5, 10].find((factor) => factor * power >= ms) * power;
  return nice * 1e6 / data.tick_ns;
}
function drawRuler() {
  pen.fillStyle = colors.card;
  pen.fillRect(0, 0, width, RULER);
  pen.font = "11px Inter, system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  const every = niceStep(110 / scale());
  for (let t = Math.max(0, Math.ceil(state.begin / every) * every); t <= state.end; t += every) {
    const x = xOf(t);
    pen.fillStyle = colors.line;
    pen.fillRect(x, RULER - 6, 1, height - RULER + 6);
    pen.fillStyle = colors.soft;
    pen.fillText(duration(msOf(t)), x + 4, RULER - 9);
  }
}
function drawSteps() {
  let lastLabel = -1e9;
  data.steps.forEach((step, s) => {
    if (step.end < state.begin || step.begin > state.end) return;
    const x = xOf(step.begin), x1 = xOf(step.end);
    if (s === state.step) {
      pen.fillStyle = colors.f;
      pen.globalAlpha = 0.05;
      pen.fillRect(Math.max(GUTTER, x), RULER, Math.min(width, x1) - Math.max(GUTTER, x), height - RULER);
      pen.globalAlpha = 1;
      pen.fillRect(Math.max(GUTTER, x), 0, Math.min(width, x1) - Math.max(GUTTER, x), 2);
    }
    if (x1 - x > 5) {
      pen.fillStyle = colors.soft;
      pen.globalAlpha = 0.6;
      if (x >= GUTTER) pen.fillRect(x, 4, 1, height - 4);
      pen.globalAlpha = 1;
    }
    const label = Math.max(GUTTER, x);
    if (label - lastLabel > 64 && x1 - label > 40) {
      pen.fillStyle = s === state.step ? colors.f : colors.soft;
      pen.font = "600 11px Inter, system-ui, sans-serif";
      pen.fillText(step.step === 0 ? "whole run" : `step ${step.step}`, label + 4, 9);
      lastLabel = label;
    }
  });
}
function drawGutter() {
  pen.fillStyle = colors.card;
  pen.fillRect(0, RULER, GUTTER, height);
  pen.textBaseline = "middle";
  for (const row of rows) {
    const y = row.y - state.top + row.height / 2;
    if (y < RULER || y > height) continue;
    const open = data.ranks[row.rank].open;
    pen.textAlign = "left";
    if (row.index === 0) {
      pen.font = "600 12.5px Inter, system-ui, sans-serif";
      pen.fillStyle = colors.text;
      pen.fillText(`${open ? "\u25be" : "\u25b8"} rank ${row.rank}`, 8, y);
    } else if (row.lane.kind === "plan" || open) {
      pen.font = "10px Inter, system-ui, sans-serif";
      pen.fillStyle = colors.soft;
      pen.textAlign = "right";
      const name = row.lane.name.replace(/^compute queue, /, "");
      pen.fillText(name.length > 22 ? `${name.slice(0, 21)}\u2026` : name, GUTTER - 8, y);
    }
  }
  pen.fillStyle = colors.line;
  pen.fillRect(GUTTER - 1, 0, 1, height);
}

/** The middle of a rank's lane, or of the rank where it is not shown. */
function yOf(rank, index = 0) {
  const row = rows.find((r) => r.rank === rank && r.index === index);
  return (row ? row.y + row.height / 2 : rankTops[rank] + ACTION / 2) - state.top;
}
function laneMiddles() {
  const middles = data.ranks.map(() => new Map());
  for (const row of rows) middles[row.rank].set(row.index, row.y + row.height / 2 - state.top);
  return (rank, index) => middles[rank].get(index) ?? rankTops[rank] + ACTION / 2 - state.top;
}
const MESSAGES_MAX = 1500;
function drawMessages() {
  const note = byId("note");
  note.hidden = true;
  if (!state.messages) return;
  const from = lowerBound(messages.begin, Math.max(0, state.begin - messages.longest));
  const to = lowerBound(messages.begin, state.end);
  if (to - from > MESSAGES_MAX) {
    note.textContent = `zoom in to see messages (${(to - from).toLocaleString("en")} here)`;
    note.hidden = false;
    return;
  }
  const middle = laneMiddles();
  pen.strokeStyle = pen.fillStyle = colors.message;
  pen.lineWidth = 1;
  pen.globalAlpha = 0.55;
  for (let i = from; i < to; ++i) {
    if (messages.end[i] < state.begin) continue;
    const x0 = xOf(messages.begin[i]), x1 = xOf(messages.end[i]);
    const y0 = middle(messages.from[i], messages.from_lane[i]), y1 = middle(messages.to[i], messages.to_lane[i]);
    const bend = Math.max(6, Math.min(40, (x1 - x0) / 2));
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 5, y1 - 3);
    pen.lineTo(x1 - 5, y1 + 3);
    pen.fill();
    ++drawn;
  }
  pen.globalAlpha = 1;
}
function drawPath() {
  if (!state.path) return;
  pen.lineJoin = "round";
  pen.strokeStyle = colors.path;
  pen.lineWidth = 3;
  for (const step of data.steps) {
    if (step.end < state.begin || step.begin > state.end) continue;
    pen.beginPath();
    const jumps = (step.end - step.begin) * scale() > 160;  // otherwise only where it is
    let last = null;
    for (const [kind, rank, from, , , begin, end] of step.path) {
      if (end < state.begin || begin > state.end) { last = null; continue; }
      const y1 = yOf(rank) - ACTION / 2 - 2.5;
      const y0 = kind === 1 ? yOf(from) - ACTION / 2 - 2.5 : y1;
      const x0 = xOf(begin), x1 = xOf(end);
      if (!jumps && y0 !== y1) { last = null; continue; }
      if (!jumps && last !== null && last[1] !== y0) last = null;
      if (last === null || Math.abs(last[0] - x0) > 2 || Math.abs(last[1] - y0) > 0.5) pen.moveTo(x0, y0);
      if (x1 - x0 < 0.4 && y0 === y1) { last = last ?? [x0, y0]; continue; }
      pen.lineTo(x1, y1);
      last = [x1, y1];
      ++drawn;
    }
    pen.stroke();
  }
}
function draw() {
  drawn = 0;
  pen.clearRect(0, 0, width, height);
  pen.fillStyle = colors.card;
  pen.fillRect(0, 0, width, height);
  for (const row of rows) drawLane(row);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, RULER, width - GUTTER, height - RULER);
  pen.clip();
  drawMessages();
  drawPath();
  if (state.hover) {
    const {row, i} = state.hover;
    const x0 = Math.max(GUTTER, xOf(row.lane.begin[i]));
    const x1 = Math.min(width, xOf(row.lane.begin[i] + row.lane.length[i]));
    pen.strokeStyle = colors.text;
    pen.lineWidth = 1.5;
    pen.strokeRect(x0, row.y - state.top, Math.max(2, x1 - x0), row.height);
  }
  pen.restore();
  drawRuler();
  drawSteps();
  drawGutter();
}
let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

// ---- Moving about.

function show(begin, end) {
  const least = 2000 / data.tick_ns;  // two microseconds
  let length = Math.min(Math.max(end - begin, least), data.end * 1.04);
  const middle = (begin + end) / 2;
  begin = Math.max(-0.02 * data.end, Math.min(middle - length / 2, data.end * 1.02 - length));
  state.begin = begin;
  state.end = begin + length;
  redraw();
}
function zoom(factor, x = (width + GUTTER) / 2) {
  const at = ticksAt(x);
  const begin = at - (at - state.begin) * factor;
  show(begin, begin + (state.end - state.begin) * factor);
}
function pan(dx, dy = 0) {
  const by = dx / scale();
  state.top = Math.max(0, Math.min(state.top + dy, contentHeight - height));
  show(state.begin + by, state.end + by);
}
function chooseStep(s, fits = true) {
  state.step = Math.max(0, Math.min(s, data.steps.length - 1));
  const step = data.steps[state.step];
  const margin = 0.015 * (step.end - step.begin);
  showStep();
  if (fits) show(step.begin - margin, step.end + margin); else redraw();
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.offsetX < GUTTER) pan(0, event.deltaY);
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX || event.deltaY);
  else zoom(Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY * 0.0022))), event.offsetX);
}, {passive: false});
let grip = null;
canvas.addEventListener("pointerdown", (event) => {
  grip = {x: event.offsetX, y: event.offsetY, moved: false};
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (grip) {
    const dx = grip.x - event.offsetX, dy = grip.y - event.offsetY;
    if (Math.abs(dx) + Math.abs(dy) > 3) grip.moved = true;
    if (!grip.moved) return;
    canvas.classList.add("moving");
    grip.x = event.offsetX;
    grip.y = event.offsetY;
    pan(dx, dy);
  } else {
    point(event.offsetX, event.offsetY);
  }
});
canvas.addEventListener("pointerup", (event) => {
  canvas.classList.remove("moving");
  if (grip && !grip.moved) click(event.offsetX, event.offsetY);
  grip = null;
});
canvas.addEventListener("pointerleave", () => { state.hover = null; byId("tip").hidden = true; redraw(); });
canvas.addEventListener("dblclick", (event) => {
  const hit = sliceAt(event.offsetX, event.offsetY);
  if (!hit) return;
  const {begin, length} = hit.row.lane;
  show(begin[hit.i] - length[hit.i] * 0.1, begin[hit.i] + length[hit.i] * 1.1);
});
function click(x, y) {
  if (y < RULER) {
    const at = ticksAt(x);
    const s = data.steps.findIndex((step) => step.begin <= at && at < step.end);
    if (s >= 0) chooseStep(s);
  } else if (x < GUTTER) {
    const row = rows.find((r) => r.y - state.top <= y && y < r.y - state.top + r.height + 2);
    if (!row) return;
    data.ranks[row.rank].open = !data.ranks[row.rank].open;
    layOut();
    redraw();
  } else {
    const at = ticksAt(x);
    const s = data.steps.findIndex((step) => step.begin <= at && at < step.end);
    if (s >= 0 && s !== state.step) chooseStep(s, false);
  }
}
function sliceAt(x, y) {
  if (x < GUTTER || y < RULER) return null;
  const row = rows.find((r) => r.y - state.top <= y && y < r.y - state.top + r.height);
  if (!row || row.lane.n === 0) return null;
  const near = 2 / scale();
  const at = ticksAt(x);
  let i = lowerBound(row.lane.begin, at + near) - 1;
  if (i < 0 || row.lane.begin[i] + row.lane.length[i] < at - near) return null;
  return {row, i};
}
function point(x, y) {
  const tip = byId("tip");
  const hit = sliceAt(x, y);
  const same = hit && state.hover && hit.row === state.hover.row && hit.i === state.hover.i;
  state.hover = hit;
  if (!same) redraw();
  tip.hidden = !hit;
  if (!hit) return;
  const {row: {lane, rank}, i} = hit;
  const step = data.steps.find((one) => one.begin <= lane.begin[i] && lane.begin[i] < one.end);
  tip.replaceChildren(
    element("b", labelOf(lane, i)),
    element("span", `${CATEGORIES[lane.categories[i]][1]}${lane.kind === "plan" ? ", planned" : ""} \u00b7 rank ${rank} \u00b7 ${lane.name}`));
  const line = (name, value) => {
    const made = element("div");
    made.append(element("span", name), element("span", value));
    tip.append(made);
  };
  line("takes", duration(msOf(lane.length[i])));
  if (step) line(step.step ? `in step ${step.step} from` : "from", duration(msOf(lane.begin[i] - step.begin)));
  if (lane.kind === "op") line("tiles", lane.keys[i].toLocaleString("en"));
  else if (lane.kind === "actor") line("key", String(lane.keys[i]));
  tip.style.left = `${Math.min(x + 14, width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > height ? y - tip.offsetHeight - 12 : y + 18}px`;
}

// ---- Figures.

function tile(value, unit, name, part, color) {
  const made = element("div", "", {className: "tile"});
  const big = element("b", value);
  if (unit) big.append(element("small", unit));
  made.append(big, element("span", name));
  if (part !== undefined) made.append(element("i", "", {"--part": `${100 * part}%`, "--color": `var(--${color})`}));
  return made;
}
function medianOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}
function showTiles() {
  const steps = data.steps;
  const wall = sumOf(steps.map((step) => sumOf(step.ranks.map(timeOf))));
  const all = (member) => sumOf(steps.map((step) => sumOf(step.ranks.map((rank) => rank[member])))) / wall;
  const tiles = [
    tile(String(data.ranks.length), data.ranks.length === 1 ? "rank" : "ranks", `${steps.length} step${steps.length === 1 ? "" : "s"}`),
    tile(number(medianOf(steps.map((step) => step.ms)), 1), "ms", "a step, median"),
    tile(number(100 * all("compute")), "%", "compute", all("compute"), "f"),
    tile(number(100 * all("exposed")), "%", "waits for messages", all("exposed"), "message")];
  const overlap = sumOf(steps.map((step) => meanOf(step, "overlapped"))) / sumOf(steps.map((step) => meanOf(step, "in_flight")));
  if (Number.isFinite(overlap)) tiles.push(tile(number(100 * overlap, 0), "%", "of messages overlapped", overlap, "u"));
  const piped = steps.filter((step) => step.bubble !== undefined);
  if (piped.length) {
    const bubble = sumOf(piped.map((step) => step.bubble)) / piped.length;
    const planned = sumOf(piped.map((step) => step.planned_bubble)) / piped.length;
    tiles.push(tile(number(100 * bubble), "%", planned > 0 ? `bubble, ${number(100 * planned)} % planned` : "bubble", bubble, "b"));
  }
  if (data.ranks.length > 1) tiles.push(tile(`\u00b1${number(data.clock_us)}`, "\u00b5s", "between clocks"));
  byId("tiles").replaceChildren(...tiles);
}
const timeOf = (rank) => rank.compute + rank.sums + rank.actors + rank.exposed + rank.waits + rank.other;

function nameOfPart([kind, rank, from, actor, name]) {
  const what = data.names[name];
  if (KINDS[kind] === "message") return [`rank ${rank} waits for ${what}`, `from rank ${from} \u00b7 ${actor}`];
  if (KINDS[kind] === "wait") return [`rank ${rank} waits for ${what}`, actor];
  if (KINDS[kind] === "unknown") return [`rank ${rank}`, "not recorded"];
  return [`rank ${rank} ${what === "run" ? actor : what}`, what === "run" ? "at work itself" : actor];
}
function colorOfPart([kind, , , actor, name]) {
  if (kind === 1) return "message";
  if (kind >= 2) return "call";
  const what = data.names[name];
  if (what.includes("|")) return "p";
  if (actor === "stage") return {F: "f", B: "b", I: "i", W: "w", V: "v"}[what[0]] ?? "a";
  return actor.startsWith("compute queue") ? "u" : actor.endsWith("queue") ? "s" : "a";
}
function pathSums(step) {
  const sums = new Map();
  for (const part of step.path) {
    const key = part.slice(0, 5).join("\u0000");
    const ticks = part[6] - part[5];
    const sum = sums.get(key) ?? {part, ticks: 0, n: 0, longest: part};
    sum.ticks += ticks;
    ++sum.n;
    if (ticks > sum.longest[6] - sum.longest[5]) sum.longest = part;
    sums.set(key, sum);
  }
  return [...sums.values()].sort((a, b) => b.ticks - a.ticks);
}
function showPath(step) {
  const length = Math.max(1, step.end - step.begin);
  byId("path").replaceChildren(...pathSums(step).slice(0, 12).map((sum) => {
    const row = element("li");
    const [name, detail] = nameOfPart(sum.part);
    const label = element("span");
    label.append(element("i", "", {className: "dot", "--color": `var(--${colorOfPart(sum.part)})`}), name + " ",
      element("em", `${detail}${sum.n > 1 ? ` \u00b7 ${sum.n} pieces` : ""}`));
    row.append(label, element("span", duration(msOf(sum.ticks)), {className: "number"}),
      element("span", percent(sum.ticks / length), {className: "number"}),
      element("u", "", {"--part": `${100 * sum.ticks / length}%`, "--color": `var(--${colorOfPart(sum.part)})`}));
    row.addEventListener("click", () => {
      const [, , , , , begin, end] = sum.longest;
      show(begin - 2 * (end - begin), end + 2 * (end - begin));
    });
    return row;
  }));
}
const PARTS = [
  ["compute", "f", "compute"], ["sums", "s", "sums"], ["actors", "a", "actors at work"], ["exposed", "message", "waits for messages"],
  ["waits", "call", "other waits"], ["other", "wait", "not recorded"]];
function showRanks(step) {
  byId("straggler").textContent = data.ranks.length > 1
    ? `Rank ${step.slowest} computes longest, ${duration(step.beyond_ms)} beyond the median.` : "";
  byId("ranks").replaceChildren(...step.ranks.map((rank, r) => {
    const row = element("div");
    const head = element("div", "", {className: "rank-head"});
    const kinds = Object.entries(rank.kinds ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 3)
      .map(([kind, ms]) => `${kind} ${duration(ms)}`).join(", ");
    head.append(element("b", `rank ${r}`), element("span", `compute ${duration(rank.compute)}${kinds ? ` \u00b7 waits: ${kinds}` : ""}`));
    const stack = element("div", "", {className: "stack"});
    for (const [member, color] of PARTS) {
      if (rank[member] <= 0) continue;
      stack.append(element("i", "", {title: `${member} ${duration(rank[member])}`, "--part": `${100 * rank[member] / timeOf(rank)}%`, "--color": `var(--${color})`}));
    }
    row.append(head, stack);
    return row;
  }));
  byId("parts").replaceChildren(...PARTS.filter(([member]) => step.ranks.some((rank) => rank[member] > 0)).map(([, color, text]) => {
    const entry = element("li");
    entry.append(element("i", "", {"--color": `var(--${color})`}), text);
    return entry;
  }));
}
function showStep() {
  const step = data.steps[state.step];
  const name = step.step === 0 ? "whole run" : `step ${step.step}`;
  byId("step-name").textContent = `${name}`;
  byId("step-name").title = duration(step.ms);
  for (const label of document.querySelectorAll(".of-step")) label.textContent = `of ${name}, ${duration(step.ms)}`;
  showPath(step);
  showRanks(step);
  document.querySelectorAll("#steps tbody tr").forEach((row, s) => row.classList.toggle("chosen", s === state.step));
  drawStepChart();
}
function showTable() {
  const head = element("thead"), titles = element("tr");
  for (const title of ["step", "ms", "compute", "exposed", "overlap", "bubble", "planned", "slowest", "most of the critical path"]) titles.append(element("th", title));
  head.append(titles);
  const body = element("tbody");
  data.steps.forEach((step, s) => {
    const [most] = pathSums(step);
    const row = element("tr");
    const cells = [step.step || "\u2013", number(step.ms, 2), number(meanOf(step, "compute"), 2), number(meanOf(step, "exposed"), 2),
      percent(overlapOf(step)), percent(step.bubble), percent(step.planned_bubble || NaN),
      data.ranks.length > 1 ? `rank ${step.slowest} +${duration(step.beyond_ms)}` : "\u2013"];
    for (const cell of cells) row.append(element("td", String(cell)));
    const last = element("td");
    if (most) {
      const [name, detail] = nameOfPart(most.part);
      last.append(`${percent(most.ticks / Math.max(1, step.end - step.begin))}  ${name} `, element("em", detail));
    }
    row.append(last);
    row.addEventListener("click", () => { chooseStep(s); canvas.scrollIntoView({block: "nearest"}); });
    body.append(row);
  });
  byId("steps").replaceChildren(head, body);
}

// ---- Charts.

function prepare(chart) {
  const ratio = window.devicePixelRatio || 1;
  const w = chart.clientWidth, h = chart.clientHeight;
  chart.width = Math.round(w * ratio);
  chart.height = Math.round(h * ratio);
  const brush = chart.getContext("2d");
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, w, h);
  brush.font = "11px Inter, system-ui, sans-serif";
  return {brush, w, h, left: 66, bottom: h - 20, top: 8};
}
function axis({brush, w, left, bottom, top}, low, high, text) {
  brush.textAlign = "right";
  brush.textBaseline = "middle";
  for (let n = 0; n <= 3; ++n) {
    const y = bottom + (top - bottom) * n / 3;
    brush.fillStyle = colors.line;
    brush.fillRect(left, Math.round(y), w - left, 1);
    brush.fillStyle = colors.soft;
    brush.fillText(text(low + (high - low) * n / 3), left - 7, y);
  }
}
function drawStepChart() {
  const chart = prepare(byId("step-chart"));
  const {brush, w, h, left, bottom, top} = chart;
  const most = Math.max(...data.steps.map((step) => Math.max(...step.ranks.map(timeOf)), 1e-9));
  axis(chart, 0, most, (ms) => duration(ms));
  const each = (w - left) / data.steps.length;
  data.steps.forEach((step, s) => {
    let y = bottom;
    for (const [member, color] of PARTS) {
      const part = meanOf(step, member) / most * (bottom - top);
      brush.fillStyle = colors[color];
      brush.globalAlpha = s === state.step ? 1 : 0.62;
      brush.fillRect(left + s * each + (each > 4 ? 1 : 0), y - part, Math.max(1, Math.min(46, each - (each > 4 ? 2 : 0))), part);
      y -= part;
    }
  });
  brush.globalAlpha = 1;
  brush.textAlign = "left";
  brush.fillStyle = colors.soft;
  const every = Math.max(1, Math.ceil(44 / each));
  for (let s = 0; s < data.steps.length; s += every) brush.fillText(String(data.steps[s].step || ""), left + s * each + 2, h - 8);
}
byId("step-chart").addEventListener("click", (event) => {
  const each = (event.target.clientWidth - 66) / data.steps.length;
  const s = Math.floor((event.offsetX - 66) / each);
  if (s >= 0 && s < data.steps.length) chooseStep(s);
});
function drawLossChart() {
  const {train, validation} = data.losses;
  const chart = prepare(byId("loss-chart"));
  const {brush, w, h, left, bottom, top} = chart;
  const all = [...train, ...validation].filter(([, loss]) => Number.isFinite(loss));
  if (all.length === 0) {
    byId("loss-hint").textContent = "No metrics.jsonl was found: llm-trace --run-dir DIR names the run's folder.";
    return;
  }
  const last = train.length ? train[train.length - 1] : validation[validation.length - 1];
  byId("loss-hint").textContent = `Step ${last[0]}: ${number(last[1], 4)}` +
    (validation.length ? ` \u00b7 validation ${number(validation[validation.length - 1][1], 4)}` : "");
  let low = Infinity, high = -Infinity, first = Infinity, end = -Infinity;
  for (const [step, loss] of all) {
    low = Math.min(low, loss); high = Math.max(high, loss); first = Math.min(first, step); end = Math.max(end, step);
  }
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  axis(chart, low, high, (value) => number(value, 2));
  const x = (step) => left + 6 + (w - left - 12) * (end > first ? (step - first) / (end - first) : 0.5);
  const y = (loss) => bottom - (bottom - top) * (loss - low) / (high - low);
  const traced = data.steps.filter((step) => step.step > 0);
  if (traced.length) {
    brush.fillStyle = colors.f;
    brush.globalAlpha = 0.07;
    brush.fillRect(x(traced[0].step) - 2, top, x(traced[traced.length - 1].step) - x(traced[0].step) + 4, bottom - top);
    brush.globalAlpha = 1;
  }
  const line = (points, color, dots) => {
    brush.strokeStyle = brush.fillStyle = color;
    brush.lineWidth = 2;
    brush.lineJoin = "round";
    brush.beginPath();
    points.forEach(([step, loss], n) => n ? brush.lineTo(x(step), y(loss)) : brush.moveTo(x(step), y(loss)));
    brush.stroke();
    if (!dots) return;
    for (const [step, loss] of points) { brush.beginPath(); brush.arc(x(step), y(loss), 3, 0, 7); brush.fill(); }
  };
  line(train, colors.f, train.length < 40);
  line(validation, colors.b, true);
  brush.textAlign = "left";
  brush.fillStyle = colors.soft;
  brush.fillText(String(first), left + 4, h - 8);
  brush.textAlign = "right";
  brush.fillText(String(end), w - 4, h - 8);
}

// ---- Buttons and keys.

function toggle(name) {
  if (name === "actors") {
    const open = !data.ranks.every((rank) => rank.open);
    for (const rank of data.ranks) rank.open = open;
    byId("toggle-actors").setAttribute("aria-pressed", String(open));
  } else {
    state[name] = !state[name];
    byId(`toggle-${name}`).setAttribute("aria-pressed", String(state[name]));
  }
  layOut();
  redraw();
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColors();
  drawStepChart();
  drawLossChart();
  redraw();
}
const switchTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const showAll = () => show(-0.01 * data.end, 1.01 * data.end);
for (const name of ["path", "messages", "plan", "actors"]) byId(`toggle-${name}`).addEventListener("click", () => toggle(name));
byId("theme-button").addEventListener("click", switchTheme);
byId("help-button").addEventListener("click", () => byId("help").showModal());
byId("previous").addEventListener("click", () => chooseStep(state.step - 1));
byId("next").addEventListener("click", () => chooseStep(state.step + 1));
byId("fit-step").addEventListener("click", () => chooseStep(state.step));
byId("fit-all").addEventListener("click", showAll);
const KEYS = {
  "[": () => chooseStep(state.step - 1), "]": () => chooseStep(state.step + 1), s: () => chooseStep(state.step), 0: showAll,
  c: () => toggle("path"), m: () => toggle("messages"), p: () => toggle("plan"), e: () => toggle("actors"), d: switchTheme,
  "?": () => byId("help").showModal(), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
  ArrowLeft: () => pan(-0.15 * width), ArrowRight: () => pan(0.15 * width), ArrowUp: () => pan(0, -60), ArrowDown: () => pan(0, 60)};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
window.addEventListener("resize", () => { layOut(); drawStepChart(); drawLossChart(); redraw(); });

// ---- Start.

/** Draws frames while it zooms and moves, and writes what they took where a test can read it. */
function measure() {
  const times = [];
  let total = 0;
  for (let n = 0; n < 60; ++n) {
    const begin = performance.now();
    if (n === 20) toggle("actors");
    if (n % 20 === 0) showAll(); else zoom(0.75, GUTTER + (width - GUTTER) * (n % 7) / 7);
    draw();
    times.push(performance.now() - begin);
    total += drawn;
  }
  toggle("actors");
  Object.assign(document.documentElement.dataset, {
    frames: times.length, meanMs: (sumOf(times) / times.length).toFixed(2), maxMs: Math.max(...times).toFixed(2), drawn: total});
}
function start() {
  byId("layout").textContent = `${data.ranks.length} rank${data.ranks.length === 1 ? "" : "s"} \u00b7 ${data.layout}`;
  document.title = `llm-train timeline \u00b7 ${data.layout}`;
  const used = new Set();
  for (const rank of data.ranks) for (const lane of rank.lanes) for (let i = 0; i < lane.n; i += 1 + (lane.n >> 12)) used.add(lane.categories[i]);
  const entries = CATEGORIES.flatMap(([name, text], c) => {
    if (!used.has(c)) return [];
    const entry = element("li");
    entry.append(element("i", "", {"--color": `var(--${name})`}), text);
    return [entry];
  });
  const path = element("li");
  path.append(element("i", "", {className: "line", "--color": "var(--path)"}), "critical path");
  byId("legend").replaceChildren(...entries, path);
  const wanted = new URLSearchParams(location.hash.slice(1));
  document.documentElement.dataset.theme = wanted.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  readColors();
  showTiles();
  showTable();
  layOut();
  const shown = wanted.has("step") ? data.steps.findIndex((step) => step.step === Number(wanted.get("step"))) : data.steps.length >> 1;
  chooseStep(Math.max(0, shown));
  drawLossChart();
  if (wanted.has("all")) showAll();
  if (wanted.has("actors")) toggle("actors");
  if (wanted.has("measure")) measure();
  draw();
}
start();
