// Keeps the page up to date: views without reloading, the fleet as it changes, and a message as it
// travels. All HTML comes from the server; nothing is built from text here.
"use strict";

const view = document.getElementById("view");
const pulse = document.getElementById("pulse");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const REFRESH = 2000; // milliseconds between refreshes of the rows of a view
const TYPING = 250; // milliseconds after the last key before a search begins
let asked = 0; // number of the latest request; responses to older ones are ignored
let waiting = 0; // number of requests without a response
let refreshed = 0;

// What the picture shows: whose leaves are unfolded, which leaves anyway, and internals

const asking = new URLSearchParams(location.search);
const shown = { unfold: new Set(asking.getAll("unfold")), show: [], internals: asking.get("internals") === "yes" };

function withInternals(url) {
  const place = new URL(url, location.href);
  shown.internals ? place.searchParams.set("internals", "yes") : place.searchParams.delete("internals");
  return place.pathname + place.search;
}

function eventsPlace() {
  return `/events?${pictureQuery()}`;
}

function pictureQuery(query = new URLSearchParams()) {
  for (const name of shown.unfold) query.append("unfold", name);
  for (const name of new Set(shown.show)) query.append("show", name);
  if (shown.internals) query.set("internals", "yes");
  return query;
}

// Views

async function fetchPart(url, part, options = {}) {
  const response = await fetch(withInternals(url), { ...options, headers: { "X-Fragment": part } });
  if (response.status === 401) location.assign("/login");
  if (!response.ok && response.status !== 422) throw new Error(`${response.status}`);
  return { html: await response.text(), url: response.url };
}

async function show(url, { keep = false, ...options } = {}) {
  const number = ++asked;
  waiting += 1;
  try {
    const found = await fetchPart(url, "view", options);
    if (number !== asked) return;
    view.innerHTML = found.html;
    const place = new URL(found.url);
    if (!keep) history.pushState(null, "", place.pathname + place.search);
    markView(place.pathname);
    view.focus({ preventScroll: true });
    enterView();
    watchShownMessage();
  } catch {
    if (number === asked) location.assign(url); // let the browser show the error
  } finally {
    waiting -= 1;
  }
}

function markView(path) {
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === path;
    if (here) document.title = `${link.textContent} – Waystation console`;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  showCurrent();
}

// On a phone the row of views scrolls: the one that is shown has to be in sight.
function showCurrent() {
  const link = document.querySelector("nav [aria-current]");
  const row = link?.closest("nav");
  if (row) row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
}

async function showRows(url) {
  const number = asked;
  const rows = document.getElementById("rows");
  waiting += 1;
  const found = await fetchPart(url, "rows").catch(() => null);
  waiting -= 1;
  if (found && number === asked && rows.isConnected) swap(rows, found.html);
}

// Replace what changed, and nothing else: what has the focus, is scrolled or is animated stays.
const last = new WeakMap(); // the HTML that each element was last given
function swap(element, html) {
  if (last.get(element) === html) return false;
  const selection = getSelection();
  if (!selection.isCollapsed && element.contains(selection.anchorNode)) return false;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  last.set(element, html);
  becomeChildren(element, fresh.content);
  return true;
}

const OWN = ["lit", "drops", "zooms"]; // classes that this script gives
function become(element, fresh) {
  const own = OWN.filter((name) => element.classList.contains(name));
  for (const name of element.getAttributeNames()) {
    if (!fresh.hasAttribute(name)) element.removeAttribute(name);
  }
  for (const name of fresh.getAttributeNames()) {
    const value = fresh.getAttribute(name);
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  if (own.length) element.classList.add(...own);
  becomeChildren(element, fresh);
}

// Children with a key are found by it, wherever they are; others by their place.
function becomeChildren(element, fresh) {
  const keyed = new Map([...element.children].filter((one) => one.dataset.key).map((one) => [one.dataset.key, one]));
  let here = element.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    while (here?.nodeName === "circle" && here.classList.contains("traveller")) here = here.nextSibling;
    const found = wanted.dataset?.key ? keyed.get(wanted.dataset.key) : isLike(here, wanted) ? here : null;
    if (!found) element.insertBefore(wanted, here);
    else if (found === here) here = here.nextSibling;
    else element.insertBefore(found, here);
    if (found?.nodeType === Node.ELEMENT_NODE) become(found, wanted);
    else if (found && found.data !== wanted.data) found.data = wanted.data;
  }
  while (here) {
    const next = here.nextSibling;
    if (here.nodeName !== "circle" || !here.classList.contains("traveller")) here.remove();
    here = next;
  }
}

function isLike(one, other) {
  return one && one.nodeName === other.nodeName && !one.dataset?.key;
}

document.addEventListener("click", (event) => {
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!plain) return;
  if (event.target.closest("[data-zoom]")) zoomBy(event.target.closest("[data-zoom]").dataset.zoom);
  const fold = event.target.closest("a[data-unfold]");
  if (fold) {
    event.preventDefault();
    const name = fold.dataset.unfold;
    if (!shown.unfold.delete(name)) shown.unfold.add(name);
    redraw();
  }
  if (event.target.closest("a[data-internals]")) {
    event.preventDefault();
    shown.internals = !shown.internals;
    listen();
    if (past) visit(past.at);
    history.replaceState(null, "", withInternals(location.pathname + location.search));
    show(location.pathname + location.search, { keep: true });
  }
  const link = event.target.closest("a[data-swap]");
  if (!link) return;
  event.preventDefault();
  show(link.getAttribute("href"));
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("form[data-search], form[data-swap][method=get]")) {
    event.preventDefault();
    show(queryOf(form));
  } else if (form.matches("form[data-swap]")) {
    event.preventDefault();
    show(form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form)) });
  }
});

function queryOf(form) {
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  return `${form.getAttribute("action")}?${new URLSearchParams(fields)}`;
}

let typing = 0;
for (const kind of ["input", "change"]) {
  document.addEventListener(kind, (event) => {
    const form = event.target.closest("form[data-search]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      const url = queryOf(form);
      history.replaceState(null, "", url);
      asked += 1;
      showRows(url);
    }, TYPING);
  });
}

addEventListener("popstate", () => show(location.pathname + location.search, { keep: true }));

// The fleet, as it changes

let events = null;
function listen() {
  events?.close();
  const mine = (events = new EventSource(eventsPlace()));
  events.addEventListener("open", () => setPulse("live", "live"));
  events.addEventListener("error", () => {
    if (mine !== events) return;
    setPulse("lost", "no connection to the console; retrying");
    if (mine.readyState !== EventSource.CLOSED) return; // the browser retries by itself
    setTimeout(listen, REFRESH);
    fetchPart(location.pathname + location.search, "rows").catch(() => {}); // or it leads to the login
  });
  events.addEventListener("fleet", (event) => {
    latest = JSON.parse(event.data).html;
    if (!pressed) showFleet();
  });
  events.addEventListener("hops", (event) => {
    const told = JSON.parse(event.data);
    const hops = document.getElementById("hops");
    if (!hops || hops.dataset.id !== told.id) return;
    swap(hops, told.html);
    follow(told.stops);
  });
}
addEventListener("pagehide", () => events?.close());

// What is replaced between the press and the release of a button would not be clicked.
let latest = ""; // the HTML of the fleet
let pressed = false;
document.addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => {
    pressed = false;
    setTimeout(() => latest && !pressed && showFleet());
  });
}

function showFleet() {
  if (past || explained) {
    showParts(latest, "vitals");
    return refreshRows();
  }
  showParts(latest);
  if (stops.length && !moving) move();
  refreshRows();
}

function showParts(html, only = "") {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  for (const part of fresh.content.children) {
    if (only && part.id !== only) continue;
    if (swap(document.getElementById(part.id), part.innerHTML) && part.id === "topology") {
      applyView();
      light();
    }
  }
}

// Draw the picture anew after what is unfolded has changed.
function redraw() {
  listen();
  if (past) visit(past.at);
  if (explained) showExplained();
}

function setPulse(state, words) {
  if (pulse.className !== state) {
    pulse.className = state;
    pulse.textContent = words;
  }
}

function refreshRows() {
  const now = Date.now();
  if (document.hidden || waiting || now - refreshed < REFRESH) return;
  if (!document.querySelector("#rows [data-live]")) return;
  if (document.getElementById("rows").contains(document.activeElement)) return;
  refreshed = now;
  showRows(location.pathname + location.search);
}

// The part of the picture that is in view

const SMALLEST = 0.15;
const READABLE = 0.6; // below this scale, letters are too small to begin with
const LARGEST = 3;
const seenPart = { scale: 0, x: 0, y: 0 }; // scale 0: not chosen yet

function mapParts() {
  const map = document.getElementById("map");
  const svg = map?.querySelector("svg");
  if (!svg) return null;
  return { map, svg, width: Number(svg.dataset.width), height: Number(svg.dataset.height) };
}

function fitScale({ map, width, height }) {
  return Math.min(1.25, map.clientWidth / width, (innerHeight * 0.6) / height);
}

// What does not fit legibly has to be moved up and down anyway: then it takes the width there is.
function firstScale(parts) {
  const fit = fitScale(parts);
  return fit < READABLE ? Math.max(READABLE, Math.min(1, parts.map.clientWidth / parts.width)) : fit;
}

function applyView() {
  const parts = mapParts();
  if (!parts || !parts.map.clientWidth) return;
  const scale = seenPart.scale || firstScale(parts);
  const across = parts.map.clientWidth;
  const down = Math.max(60, Math.min(innerHeight * 0.6, parts.height * scale));
  const [wide, tall] = [across / scale, down / scale];
  const within = (value, room) => (room < 0 ? room / 2 : Math.min(Math.max(0, value), room));
  seenPart.x = within(seenPart.x, parts.width - wide);
  seenPart.y = within(seenPart.y, parts.height - tall);
  parts.map.classList.toggle("zooms", true);
  parts.svg.setAttribute("width", across);
  parts.svg.setAttribute("height", down);
  parts.svg.setAttribute("viewBox", `${seenPart.x} ${seenPart.y} ${wide} ${tall}`);
  return { ...parts, scale, wide, tall };
}

function zoomTo(scale, across = 0.5, down = 0.5) {
  const now = applyView();
  if (!now) return;
  const next = Math.min(LARGEST, Math.max(SMALLEST, scale));
  seenPart.x += (now.wide - now.map.clientWidth / next) * across;
  seenPart.y += (now.tall - Math.min(innerHeight * 0.6, now.height * next) / next) * down;
  seenPart.scale = next;
  applyView();
}

function zoomBy(way, across, down) {
  const now = applyView();
  if (!now) return;
  if (way === "fit") zoomTo(fitScale(now));
  else zoomTo(now.scale * (way === "in" ? 1.25 : 0.8), across, down);
}

// Make all of some boxes visible, if they are not.
function reveal(boxes) {
  const now = applyView();
  if (!now || !boxes.length) return;
  const around = boxes.map((box) => box.getBBox());
  const left = Math.min(...around.map((one) => one.x)) - 8;
  const top = Math.min(...around.map((one) => one.y)) - 8;
  const right = Math.max(...around.map((one) => one.x + one.width)) + 8;
  const bottom = Math.max(...around.map((one) => one.y + one.height)) + 8;
  const { x, y } = seenPart;
  if (left >= x && top >= y && right <= x + now.wide && bottom <= y + now.tall) return;
  const most = Math.min(now.map.clientWidth / (right - left), (innerHeight * 0.6) / (bottom - top));
  if (most < now.scale) seenPart.scale = Math.max(SMALLEST, most);
  const after = applyView();
  seenPart.x = Math.min(Math.max(seenPart.x, right - after.wide), left);
  seenPart.y = Math.min(Math.max(seenPart.y, bottom - after.tall), top);
  applyView();
}

document.addEventListener("wheel", (event) => {
  const map = event.target.closest?.("#map");
  if (!map || !(event.ctrlKey || map.contains(document.activeElement))) return; // or the page scrolls
  event.preventDefault();
  const box = map.getBoundingClientRect();
  const across = (event.clientX - box.left) / box.width;
  zoomBy(event.deltaY < 0 ? "in" : "out", across, (event.clientY - box.top) / box.height);
}, { passive: false });

const KEYS = { "+": "in", "=": "in", "-": "out", "0": "fit" };
const ARROWS = { ArrowLeft: [-60, 0], ArrowRight: [60, 0], ArrowUp: [0, -60], ArrowDown: [0, 60] };
document.addEventListener("keydown", (event) => {
  const fold = event.target.closest?.("a[data-unfold]");
  if (fold && event.key === " ") { // as a button does
    event.preventDefault();
    fold.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  }
  if (!event.target.closest?.("#map") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (KEYS[event.key]) zoomBy(KEYS[event.key]);
  else if (ARROWS[event.key]) moveView(...ARROWS[event.key]);
  else return;
  event.preventDefault();
});

function moveView(across, down) {
  const now = applyView();
  seenPart.scale = now.scale;
  seenPart.x += across / now.scale;
  seenPart.y += down / now.scale;
  applyView();
}

let dragged = null; // where the pointer was last
let dragging = false;
document.addEventListener("pointerdown", (event) => {
  if (event.button === 0 && event.target.closest("#map")) dragged = [event.clientX, event.clientY];
});
document.addEventListener("pointermove", (event) => {
  if (!dragged) return;
  const [across, down] = [dragged[0] - event.clientX, dragged[1] - event.clientY];
  if (!dragging && Math.hypot(across, down) < 5) return; // a click
  dragging = true;
  moveView(across, down);
  dragged = [event.clientX, event.clientY];
});
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => { dragged = null; });
}
document.addEventListener("click", (event) => {
  if (!dragging) return;
  dragging = false;
  event.preventDefault();
  event.stopPropagation();
}, { capture: true });
document.addEventListener("dragstart", (event) => event.target.closest?.("#map") && event.preventDefault());
addEventListener("resize", () => applyView());

// Animate a message over the picture

let stops = []; // the nodes that the shown message has passed
let drawn = 0; // number of them that were animated
let moving = false;
let revealed = 0; // number of lit boxes when the picture was last moved to show them

function watchShownMessage() {
  const message = document.querySelector("#view [data-stops]");
  stops = [];
  drawn = revealed = 0;
  light();
  if (message) follow(JSON.parse(message.dataset.stops));
}

// The path is always in view: leaves on it that are folded are asked for.
function askForStops() {
  const drawnNames = new Set([...document.querySelectorAll(".box")].map((box) => box.dataset.node));
  const lacking = stops.filter((stop) => stop && !drawnNames.has(stop) && !shown.show.includes(stop));
  if (!lacking.length) return;
  shown.show = [...shown.show.filter((name) => stops.includes(name)), ...stops].slice(-60);
  redraw();
}

function follow(known) {
  if (known.length < stops.length || stops.some((stop, at) => stop !== known[at])) drawn = Math.min(drawn, 1);
  stops = known;
  askForStops();
  if (!moving) move();
}

async function move() {
  moving = true;
  while (drawn < stops.length) {
    const [from, to] = [stops[drawn - 1], stops[drawn]];
    drawn += 1;
    if (from && to) await travel(from, to); // a name is empty where the path begins anew
    light();
  }
  moving = false;
}

function light() {
  const seen = stops.slice(0, drawn);
  for (const box of document.querySelectorAll(".box")) {
    box.classList.toggle("lit", seen.includes(box.dataset.node));
  }
  const lit = [...document.querySelectorAll(".box.lit")];
  if (lit.length !== revealed) {
    revealed = lit.length;
    reveal(lit);
  }
  for (const line of document.querySelectorAll(".line")) {
    const passed = seen.some((stop, at) => at > 0 && joins(line, seen[at - 1], stop));
    line.classList.toggle("lit", passed);
  }
}

function joins(line, one, other) {
  const { left, right } = line.dataset;
  return (left === one && right === other) || (left === other && right === one);
}

function travel(from, to) {
  const line = [...document.querySelectorAll(".line")].find((found) => joins(found, from, to));
  if (!line || still.matches || document.hidden) return Promise.resolve();
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  dot.setAttribute("r", "6");
  dot.setAttribute("class", "traveller");
  line.ownerSVGElement.append(dot);
  const length = line.getTotalLength();
  const backwards = line.dataset.left !== from;
  const started = performance.now();
  return new Promise((arrived) => {
    const step = (now) => {
      const share = Math.min(1, Math.max(0, (now - started) / 500));
      const point = line.getPointAtLength(length * (backwards ? 1 - share : share));
      dot.setAttribute("cx", point.x);
      dot.setAttribute("cy", point.y);
      if (share < 1 && dot.isConnected) return requestAnimationFrame(step);
      dot.remove();
      arrived();
    };
    step(started);
  });
}

// The past: a moment chosen with the slider, and what moved then

const DRAGGING = 120; // milliseconds after the last move of the slider before a moment is asked for
let explained = false; // while the view explains a message of which the journal tells
let past = null; // while the view of the past is shown: its moment, and whether it plays
let choosing = 0;
let visits = 0;

function enterView({ isDrawn = false } = {}) {
  const form = document.querySelector("form[data-past]");
  const was = past || explained;
  explained = document.querySelector("#view [data-then]") !== null;
  past = form ? { at: Number(form.dataset.at), span: Number(form.dataset.span), playing: false } : null;
  if (past) visit(past.at, { replay: false });
  else if (explained && !isDrawn) showParts(document.querySelector("#view [data-beside]").innerHTML);
  else if (was && latest) showFleet();
}

// The fleet of the moment when the explained message ended.
async function showExplained() {
  const place = location.href;
  const query = pictureQuery(new URLSearchParams(location.search));
  const found = await fetchPart(`${location.pathname}?${query}`, "fleet").catch(() => null);
  if (found?.html && explained && place === location.href) showParts(found.html);
}

// Show a moment; with `replay`, also let move what moved in the time that follows it.
async function visit(at, { replay = false } = {}) {
  const number = ++visits;
  const form = document.querySelector("form[data-past]");
  if (!form || !past) return false;
  const query = pictureQuery(new URLSearchParams(new FormData(form)));
  query.set("at", String(Math.round(at)));
  const response = await fetch(`/past?${query}`, { headers: { "X-Fragment": "moment" } }).catch(() => null);
  if (response?.status === 401) location.assign("/login");
  if (!response?.ok || number !== visits || !past) return false;
  const then = await response.json();
  if (number !== visits || !past) return false;
  past = { ...past, at: then.at, span: then.span, first: then.first, last: then.last };
  showMoment(then);
  if (replay) await play(then, number);
  return number === visits && past !== null;
}

function showMoment(then) {
  showParts(then.fleet);
  swap(document.getElementById("rows"), then.rows);
  document.getElementById("moment-words").textContent = then.words;
  const slider = document.getElementById("moment");
  slider.min = Math.floor(then.first / 1000);
  slider.max = Math.ceil(then.last / 1000);
  setCursor(then.at);
  const place = new URL(location.href);
  place.searchParams.set("at", then.at);
  history.replaceState(null, "", place.pathname + place.search);
}

function setCursor(at) {
  const slider = document.getElementById("moment");
  if (!slider || !past) return;
  const words = new Date(at / 1000).toISOString().replace("T", " ");
  slider.value = Math.round(at / 1000);
  slider.setAttribute("aria-valuetext", words);
  const exact = document.getElementById("at");
  if (exact !== document.activeElement) exact.value = words;
  const share = (at - past.first) / Math.max(1, past.last - past.first);
  const width = slider.closest(".timeline").querySelector("svg").viewBox.baseVal.width;
  slider.closest(".timeline").querySelector(".cursor").setAttribute("d", `M${share * width} 0V40`);
}

// Let messages move as they did; a window takes as long as it took, or less at a higher speed.
function play(then, number) {
  const speed = Number(document.getElementById("speed").value) || 1;
  const length = then.span / 1000 / speed;
  const started = performance.now();
  const waitingMoves = [...then.moves];
  return new Promise((over) => {
    const step = (now) => {
      if (number !== visits || !past?.playing) return over();
      const elapsed = ((now - started) / length) * then.span;
      while (waitingMoves.length && waitingMoves[0][0] <= elapsed) showMove(...waitingMoves.shift());
      setCursor(Math.min(then.at + elapsed, past.last));
      if (elapsed >= then.span) return over();
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
}

function showMove(_, from, to, dropped) {
  if (to) travel(from, to);
  if (!dropped) return;
  const box = [...document.querySelectorAll(".box")].find((found) => found.dataset.node === from);
  if (!box) return;
  box.classList.remove("drops");
  box.getBBox(); // so that the animation begins anew
  box.classList.add("drops");
}

async function playOn() {
  const button = document.getElementById("play");
  past.playing = !past.playing;
  label(button, past.playing);
  while (past?.playing) {
    const shownOne = await visit(past.at, { replay: true });
    if (!shownOne || !past?.playing) break;
    if (past.at + past.span >= past.last) break;
    past.at += past.span;
  }
  if (past && button.isConnected) {
    past.playing = false;
    label(button, false);
  }
}

function label(button, playing) {
  button.textContent = playing ? "Pause" : "Play";
  button.setAttribute("aria-pressed", String(playing));
}

function stopPlaying() {
  if (!past?.playing) return;
  past.playing = false;
  label(document.getElementById("play"), false);
}

document.addEventListener("input", (event) => {
  if (event.target.id !== "moment" || !past) return;
  stopPlaying();
  const at = Number(event.target.value) * 1000;
  setCursor(at);
  clearTimeout(choosing);
  choosing = setTimeout(() => visit(at), DRAGGING);
});

document.addEventListener("change", (event) => {
  if (past && ["past-node", "speed"].includes(event.target.id)) visit(past.at);
});

document.addEventListener("click", (event) => {
  if (event.target.id === "play" && past) playOn();
  const step = event.target.closest("a[data-step]");
  if (!step || !past || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  stopPlaying();
  visit(past.at + Number(step.dataset.step) * past.span);
}, { capture: true });

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-past]")) return;
  event.preventDefault();
  stopPlaying();
  show(queryOf(event.target));
});

addEventListener("pageshow", (event) => event.persisted && listen());
applyView();
showCurrent();
enterView({ isDrawn: true });
watchShownMessage();
listen();
