// SPDX-License-Identifier: Apache-2.0
// Filters the table of the index; the filters stand in the address, so that a view can be linked.
const filters = [...document.querySelectorAll(".filters [name]")];
const rows = [...document.querySelectorAll("tbody tr")];
const count = document.getElementById("count");

function apply() {
  const wanted = Object.fromEntries(filters.map((f) => [f.name, f.value.trim().toLowerCase()]));
  const words = wanted.q.split(/\s+/);
  let shown = 0;
  for (const row of rows) {
    const fits =
      words.every((word) => row.dataset.text.includes(word)) &&
      (!wanted.repo || row.dataset.repo.toLowerCase() === wanted.repo) &&
      (!wanted.severity || row.dataset.severity === wanted.severity) &&
      (!wanted.tag || row.dataset.tags.split(" ").includes(wanted.tag));
    row.hidden = !fits;
    shown += fits;
  }
  count.textContent = shown;
  const given = filters.filter((f) => f.value).map((f) => [f.name, f.value]);
  history.replaceState(null, "", given.length ? "?" + new URLSearchParams(given) : location.pathname);
}

for (const [name, value] of new URLSearchParams(location.search)) {
  const filter = filters.find((f) => f.name === name);
  if (filter) filter.value = value;
}
for (const filter of filters) filter.addEventListener("input", apply);
apply();
