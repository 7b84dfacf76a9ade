// The desk's comfort: every page works without this file. It sets texts and attributes of what is there; rows are never
// put in under the pointer.
(() => {
"use strict";
const policy = self.trustedTypes ? trustedTypes.createPolicy("desk", { createHTML: text => text }) : { createHTML: text => text };
const $ = (what, of = document) => of.querySelector(what);
const $$ = (what, of = document) => [...of.querySelectorAll(what)];
const parse = text => new DOMParser().parseFromString(policy.createHTML(text), "text/html");

// Times: UTC as the server writes them, or local; remembered in this browser.
let local = false;
try { local = localStorage.getItem("redrive-local") === "1" } catch {}
const two = number => String(number).padStart(2, "0");
const zone = $("[data-zone]");
const times = () => {
  for (const time of $$("time[datetime]")) {
    time.dataset.utc ??= time.textContent;
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    time.textContent = local ? (at.toDateString() === new Date().toDateString() ? `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` : `${at.toLocaleString("en", { month: "short", day: "numeric" })} ${two(at.getHours())}:${two(at.getMinutes())}`) : time.dataset.utc;
  }
  if (zone) { zone.hidden = false; zone.textContent = local ? "Times are local" : "Times are UTC" }
};
zone?.addEventListener("click", () => { local = !local; try { localStorage.setItem("redrive-local", local ? "1" : "0") } catch {} times() });

// Updates: the page is asked for again; what has an id gets its new text and attributes.
const every = Number(document.body.dataset.live || 0);
const updated = $("#updated");
let on = every > 0, tag = null, last = new Date(), timer = 0, busy = false;
const clock = at => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
const say = (text, old) => { if (!updated) return; updated.textContent = text; updated.toggleAttribute("data-old", !!old) };
const copy = (from, to) => {
  for (const { name, value } of [...from.attributes]) if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  for (const { name } of [...to.attributes]) if (!from.hasAttribute(name) && !name.startsWith("data-at") && name !== "data-new" && name !== "data-utc") to.removeAttribute(name);
};
const take = page => {
  const main = $("#main", page);
  if (!main) return;
  for (const fresh of $$("[id]", main)) {
    const here = document.getElementById(fresh.id);
    if (!here || here.contains(document.activeElement) && here !== document.activeElement) continue;
    if (fresh.matches("tr, section")) continue;
    const hasParts = $("[id]", fresh);
    copy(fresh, here);
    if (!hasParts && here.textContent !== fresh.textContent) {
      here.replaceChildren(...[...fresh.childNodes].map(node => document.importNode(node, true)));
      delete here.dataset.utc; here.setAttribute("data-new", ""); setTimeout(() => here.removeAttribute("data-new"), 500);
    } else if (fresh.hasAttribute("data-swap")) here.replaceChildren(...[...fresh.childNodes].map(node => document.importNode(node, true)));
  }
  const known = new Set($$("[data-row]").map(row => row.id)), rows = $$("[data-row]", main);
  const news = rows.filter(row => !known.has(row.id)).length, gone = known.size + news - rows.length;
  let pill = $("#pill");
  if (news || gone > 0) {
    if (!pill) { pill = document.createElement("a"); pill.id = "pill"; pill.className = "button pill"; pill.href = location.href; $(".head").append(pill) }
    pill.textContent = [news ? `${news} new` : "", gone > 0 ? `${gone} gone` : ""].filter(Boolean).join(", ") + " · show";
  } else pill?.remove();
  if (!$("#state", page) !== !$("#state") || $$("form[method=post]", main).length !== $$("#main form[method=post]").length) { if (!document.activeElement || document.activeElement === document.body) location.reload(); }
  times();
};
const poll = async () => {
  clearTimeout(timer);
  if (!on || document.hidden || busy) return;
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: tag ? { "if-none-match": tag } : {}, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(8000) });
    if (answer.status === 200) { tag = answer.headers.get("etag"); take(parse(await answer.text())) } else if (answer.status !== 304) throw answer.status;
    last = new Date(); say(`updated ${clock(last)}`);
  } catch { say(`not updated since ${clock(last)}`, true) }
  busy = false;
  if (on && !document.hidden) timer = setTimeout(poll, every * 1000);
};
const live = () => { if (!every) return; if (on) poll(); else say("updates are off") };
document.addEventListener("visibilitychange", () => { document.hidden ? (clearTimeout(timer), close()) : (live(), follow()) });

// One stream a tab, for a job, while the tab is seen.
let stream = null;
const close = () => { stream?.close(); stream = null };
const follow = () => {
  const address = $("[data-stream]")?.dataset.stream;
  if (!address || stream || document.hidden) return;
  stream = new EventSource(address);
  stream.addEventListener("changed", event => { poll(); if (!["running", "paused"].includes(event.data)) close() });
  stream.onerror = close;
};

// Choosing rows.
for (const form of $$("[data-choose]")) {
  const all = $("[data-all]", form), said = $("[data-chosen]", form), boxes = () => $$("input[name=which]", form);
  const count = () => { const n = boxes().filter(box => box.checked).length; if (said) said.textContent = n ? `${n} chosen on this page` : "Choose events, or act on all that match:"; if (all) { all.checked = n > 0 && n === boxes().length; all.indeterminate = n > 0 && !all.checked } };
  if (all) { all.hidden = false; all.addEventListener("change", () => { boxes().forEach(box => box.checked = all.checked); count() }) }
  form.addEventListener("change", count); count();
}
for (const form of $$("[data-once]")) form.addEventListener("submit", event => { if (form.dataset.sent) event.preventDefault(); form.dataset.sent = "1" });
addEventListener("pageshow", () => $$("[data-once]").forEach(form => delete form.dataset.sent));

// Copying the command.
const copyCommand = async button => { try { await navigator.clipboard.writeText($("#command").textContent); if (button) { button.textContent = "Copied"; setTimeout(() => button.textContent = "Copy", 1500) } } catch { getSelection().selectAllChildren($("#command")) } };
for (const button of $$("[data-copy]")) { button.hidden = false; button.addEventListener("click", () => copyCommand(button)) }

// Keys and the palette.
const keys = $("#keys"), palette = $("#palette"), choices = $("#choices"), asked = $("#pq");
const keysButton = $("[data-keys]");
if (keysButton) { keysButton.hidden = false; keysButton.addEventListener("click", () => keys.showModal()) }
const pages = $$("[data-go]").map(link => ({ name: link.textContent.trim(), href: link.href, key: link.dataset.go }));
const fill = () => {
  const text = asked.value.trim().toLowerCase();
  const found = [...pages, ...$$("#main [data-key]").filter(it => it.href).slice(0, 1).map(it => ({ name: it.textContent.trim(), href: it.href }))].filter(page => page.name.toLowerCase().includes(text));
  if (text) found.push({ name: `find “${asked.value.trim()}”`, href: `/desk/find?q=${encodeURIComponent(asked.value.trim())}` });
  choices.replaceChildren(...found.slice(0, 8).map((page, at) => { const li = document.createElement("li"), a = document.createElement("a"); a.href = page.href; a.textContent = page.name; if (!at) a.dataset.at = ""; li.append(a); return li }));
};
asked?.addEventListener("input", fill);
asked?.addEventListener("keydown", event => { if (event.key === "Enter" && $("a[data-at]", choices)) { event.preventDefault(); $("a[data-at]", choices).click() } if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); const all = $$("a", choices), at = all.findIndex(a => "at" in a.dataset); if (at >= 0) { delete all[at].dataset.at; all[(at + (event.key === "ArrowDown" ? 1 : all.length - 1)) % all.length].dataset.at = "" } } });
let going = false, row = -1;
const move = by => { const rows = $$("[data-row]"); if (!rows.length) return; rows[row]?.removeAttribute("data-at"); row = Math.max(0, Math.min(rows.length - 1, row + by)); rows[row].setAttribute("data-at", ""); rows[row].scrollIntoView({ block: "nearest" }) };
addEventListener("keydown", event => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) { event.preventDefault(); palette.showModal(); fill(); asked.select(); return }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const here = $$("[data-row]")[row];
  if (going) { going = false; const page = pages.find(page => page.key === event.key); if (page) location.href = page.href; return }
  switch (event.key) {
    case "g": going = true; setTimeout(() => going = false, 1500); break;
    case "/": event.preventDefault(); ($("[data-filter]") || $("#q")).focus(); break;
    case "?": keys?.showModal(); break;
    case "j": move(1); break;
    case "k": move(-1); break;
    case "Enter": if (here && event.target === document.body) $("a", here)?.click(); break;
    case "x": case "X": if (event.shiftKey) $("[data-all]")?.click(); else { const box = here && $("input[name=which]", here); if (box) { box.checked = !box.checked; box.dispatchEvent(new Event("change", { bubbles: true })) } } break;
    case "c": copyCommand($("[data-copy]")); break;
    case ".": on = !on; live(); break;
    default: { const found = /^[a-z]$/.test(event.key) && ((here && $(`[data-key="${event.key}"]`, here)) || $$(`#main [data-key="${event.key}"]`).find(it => !it.closest("[data-row]"))); if (found) { event.preventDefault(); found.click() } }
  }
});
times();
if (every) { say(`updated ${clock(last)}`); timer = setTimeout(poll, every * 1000) }
follow();
})();
