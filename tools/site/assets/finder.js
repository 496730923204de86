// SPDX-License-Identifier: Apache-2.0
// The search for a pasted message, and the filters of the error index. The bundle that
// tools/build_site.py writes puts matching.js in front, so that it also runs from a disk.
"use strict";

function matcher() {
  if (!window.packattnMatcher) window.packattnMatcher = new Matcher(window.packattnRecords || []);
  return window.packattnMatcher;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function card(match, base, first) {
  const { record } = match;
  const link = element("a", first ? "hit best" : "hit");
  link.href = `${base}${record.page}.html`;
  const name = record.page.startsWith("PA") ? record.page : record.repo;
  link.append(element("b", "", name), element("span", "", record.errorMessage));
  if (first) {
    const values = match.names.map((placeholder, i) => `${placeholder} = ${match.captures[i]}`);
    const note = match.score === 1 ? values.join("   ") : "nearest by its words";
    if (note) link.append(element("small", "", note));
  }
  return link;
}

for (const finder of document.querySelectorAll(".finder")) {
  const { base } = finder.dataset;
  const input = finder.querySelector("textarea");
  const found = finder.querySelector(".found");
  let matches = [];
  let waiting = 0;

  const search = () => {
    const text = input.value.trim();
    matches = text.length > 2 ? matcher().find(text) : [];
    const shown = matches.slice(0, matches[0]?.score === 1 ? 3 : 5);
    found.replaceChildren(...shown.map((match, i) => card(match, base, i === 0)));
    if (text.length > 2 && matches.length === 0) {
      found.replaceChildren(element("p", "", "No record has words of this text."));
    }
    finder.dispatchEvent(new CustomEvent("searched", { detail: { text, matches } }));
  };
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 80);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    search();
    if (matches.length > 0) window.location.href = `${base}${matches[0].record.page}.html`;
  });
  const asked = new URLSearchParams(window.location.search).get("q");
  if (asked) {
    input.value = asked;
    search();
  }
}

const table = document.querySelector("table.records");
if (table) {
  const finder = document.querySelector(".finder");
  const input = finder.querySelector("textarea");
  const filters = [...document.querySelectorAll(".filters select")];
  const rows = [...table.querySelectorAll("tr")];
  const count = document.getElementById("count");
  let matches = [];

  const apply = () => {
    const wanted = Object.fromEntries(filters.map((filter) => [filter.name, filter.value]));
    const text = input.value.trim().toLowerCase();
    const words = text.split(/\s+/);
    // A message is looked up; a few words filter.
    const found = new Set(matches.map((match) => match.record.id));
    const message = words.length > 6 || text.includes("\n");
    let shown = 0;
    for (const row of rows) {
      const { repo, severity, tags, id } = row.dataset;
      const has = words.every((word) => row.dataset.text.includes(word));
      const fits =
        (has || (message && found.has(id))) &&
        (!wanted.repo || repo === wanted.repo) &&
        (!wanted.severity || severity === wanted.severity) &&
        (!wanted.tag || tags.split(" ").includes(wanted.tag));
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = shown;
    const given = filters.filter((filter) => filter.value);
    const query = new URLSearchParams(given.map((filter) => [filter.name, filter.value]));
    if (text && !message) query.set("q", text);
    const address = window.location.pathname + (query.size > 0 ? `?${query}` : "");
    // From a disk the address cannot be changed.
    if (window.location.protocol.startsWith("http")) history.replaceState(null, "", address);
  };
  for (const [name, value] of new URLSearchParams(window.location.search)) {
    const filter = filters.find((candidate) => candidate.name === name);
    if (filter) filter.value = value;
  }
  finder.addEventListener("searched", (event) => {
    ({ matches } = event.detail);
    apply();
  });
  for (const filter of filters) filter.addEventListener("input", apply);
  apply();
}
