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

// Views

async function fetchPart(url, part, options = {}) {
  const response = await fetch(url, { ...options, headers: { "X-Fragment": part } });
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
}

async function showRows(url) {
  const number = asked;
  const rows = document.getElementById("rows");
  waiting += 1;
  const found = await fetchPart(url, "rows").catch(() => null);
  waiting -= 1;
  if (found && number === asked && rows.isConnected) swap(rows, found.html);
}

// Replace what changed, except what the user is working with.
const last = new WeakMap(); // the HTML that each element was last given
function swap(element, html) {
  if (last.get(element) === html) return false;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const selection = getSelection();
  if (!selection.isCollapsed && element.contains(selection.anchorNode)) return false;
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const focusable = "a, button, input, select, textarea, [tabindex]";
  const position = focused ? [...element.querySelectorAll(focusable)].indexOf(focused) : -1;
  const scrolled = [...element.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  last.set(element, html);
  element.replaceChildren(fresh.content);
  [...element.querySelectorAll(".scroll")].forEach((box, at) => scrolled[at] && box.scrollTo(...scrolled[at]));
  element.querySelectorAll(focusable)[position]?.focus({ preventScroll: true });
  return true;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-swap]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain) return;
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

function listen() {
  const events = new EventSource("/events");
  events.addEventListener("open", () => setPulse("live", "live"));
  events.addEventListener("error", () => {
    setPulse("lost", "no connection to the console; retrying");
    if (events.readyState !== EventSource.CLOSED) return; // the browser retries by itself
    setTimeout(listen, REFRESH);
    fetchPart(location.pathname + location.search, "rows").catch(() => {}); // or it leads to the login
  });
  events.addEventListener("fleet", (event) => {
    const fresh = document.createElement("template");
    fresh.innerHTML = JSON.parse(event.data).html;
    for (const part of fresh.content.children) {
      if (swap(document.getElementById(part.id), part.innerHTML)) light();
    }
    refreshRows();
  });
  events.addEventListener("hops", (event) => {
    const told = JSON.parse(event.data);
    const hops = document.getElementById("hops");
    if (!hops || hops.dataset.id !== told.id) return;
    swap(hops, told.html);
    follow(told.stops);
  });
  addEventListener("pagehide", () => events.close(), { once: true });
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

// Animate a message over the picture

let stops = []; // the nodes that the shown message has passed
let drawn = 0; // number of them that were animated
let moving = false;

function watchShownMessage() {
  const hops = document.getElementById("hops");
  stops = [];
  drawn = 0;
  light();
  if (hops) follow(JSON.parse(hops.dataset.stops));
}

function follow(known) {
  if (known.length < stops.length || stops.some((stop, at) => stop !== known[at])) drawn = Math.min(drawn, 1);
  stops = known;
  if (!moving) move();
}

async function move() {
  moving = true;
  while (drawn < stops.length) {
    const [from, to] = [stops[drawn - 1], stops[drawn]];
    drawn += 1;
    if (from !== undefined) await travel(from, to);
    light();
  }
  moving = false;
}

function light() {
  const seen = stops.slice(0, drawn);
  for (const box of document.querySelectorAll(".box")) {
    box.classList.toggle("lit", seen.includes(box.dataset.node));
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

addEventListener("pageshow", (event) => event.persisted && listen());
watchShownMessage();
listen();
