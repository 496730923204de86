// SPDX-License-Identifier: Apache-2.0
// Finds the record of a pasted message, as `packattn explain` does (src/errors/match.cpp), so that
// the site needs no server. tests/site compares the two.
"use strict";

const PREFIX = new RegExp(
  "^\\s*(?:" +
    "(?:\\d{2,4}[-/]\\d{2}(?:[-/]\\d{2})?[t ])?\\d{1,2}:\\d{2}:\\d{2}(?:[.,]\\d+)?z?:?\\s" +
    "|\\[[^\\]]*\\]:?|\\([^)]*pid[^)]*\\):?" +
    "|<?(?:error|warning|warn|info|debug|critical|fatal)>?\\s*[:|-]?\\s" +
    "|e\\d{4}(?=\\s)|e\\s{1,4}(?=\\S)|[|>$#-]+\\s" +
    "|[\\w./\\\\-]+\\.(?:py|cpp|cc|cu|cuh|h|hpp|rs)(?::|\", line )\\d+[\\]:,)]*" +
    "|terminate called[^:]*:|raise\\s" +
    "|(what\\(\\):|(?:\\w+\\.)*\\w*(?:error|exception|warning|failure|interrupt)(?:\\[\\w+\\])?:)" +
    "|error\\[pa\\d{4}\\]:" +
    ")\\s*",
  "i",
);

const collapsed = (text) => text.replace(/\s+/g, " ").trim();
const telling = (text) => (text.match(/[a-z0-9]/gi) || []).length;
const wordCount = (text) => text.split(" ").length;

function stripped(line) {
  let rest = line;
  let raised = false;
  for (;;) {
    const found = PREFIX.exec(rest.slice(0, 160));
    if (!found || found[0].length === 0 || found[0].length === rest.length) return { rest, raised };
    raised = raised || found[1] !== undefined;
    rest = rest.slice(found[0].length);
  }
}

export function candidates(text) {
  const lines = text.slice(-16384).split("\n").map(collapsed).filter(Boolean).slice(-64);
  const parts = lines.map(stripped);
  const prefixes = lines.map((line, i) => line.slice(0, line.length - parts[i].rest.length));
  const list = [];
  for (let last = lines.length - 1; last >= 0; last -= 1) {
    let joined = parts[last].rest;
    list.push({ text: joined, raised: parts[last].raised, joined: false });
    for (let next = last + 1; next < Math.min(last + 4, lines.length); next += 1) {
      joined += " " + (prefixes[last].startsWith(prefixes[next]) ? parts[next].rest : lines[next]);
      list.push({ text: joined, raised: parts[last].raised, joined: true });
    }
  }
  return list;
}

class Pattern {
  constructor(source) {
    const pieces = stripped(collapsed(source)).rest.split(/\{([^}]*)\}/);
    this.literals = pieces.filter((_, i) => i % 2 === 0).map((piece) => piece.toLowerCase());
    this.names = pieces.filter((_, i) => i % 2 === 1);
    const end = this.literals.length - 1;
    if (this.literals[end].length > 1) this.literals[end] = this.literals[end].replace(/\.$/, "");
    this.weight = telling(this.literals.join(""));
  }

  find(text, lowered) {
    if (this.weight < 7) return null;
    const first = this.literals[0];
    if (!first) return this.findAt(text, lowered, 0);
    for (let at = lowered.indexOf(first); at >= 0; at = lowered.indexOf(first, at + 1)) {
      const found = this.findAt(text, lowered, at);
      if (found) return found;
    }
    return null;
  }

  findAt(text, lowered, begin) {
    let start = begin;
    let position = start + this.literals[0].length;
    const captures = [];
    for (let i = 0; i < this.names.length; i += 1) {
      const next = this.literals[i + 1];
      if (position >= text.length) return null;
      const last = i + 1 === this.names.length;
      let end = last && next === "" ? text.length : lowered.indexOf(next, position + 1);
      if (end < 0 && last && next === ".") end = text.length;
      if (end < 0) return null;
      let capture = text.slice(position, end);
      if (i === 0 && this.literals[0] === "") {
        if (wordCount(capture) > 3) capture = capture.slice(capture.lastIndexOf(" ") + 1);
        start = end - capture.length;
      }
      captures.push(capture);
      position = Math.min(end + next.length, text.length);
    }
    const behind = text.slice(position);
    const whole = start === 0 && (behind === "" || behind === ".");
    if (!whole && this.weight < 12) return null;
    const short = captures.every((capture) => {
      const count = wordCount(capture);
      return count === 1 || (count <= 4 && capture.length <= 60);
    });
    return this.weight >= 24 || short ? { whole, captures } : null;
  }

  partFoundIn(lowered) {
    let found = 0;
    for (const part of this.literals) {
      if (part.length < 12) continue;
      const at = lowered.indexOf(part.slice(0, 12));
      if (at < 0) continue;
      let same = 12;
      while (same < part.length && part[same] === lowered[at + same]) same += 1;
      const length = telling(part.slice(0, same));
      if (length >= 14) found += length;
    }
    return found < 20 ? 0 : found / this.weight;
  }
}

function words(text) {
  const found = new Set();
  const add = (word) => {
    let cut = word;
    if (cut.length > 5 && cut.endsWith("ed")) cut = cut.slice(0, -2);
    else if (cut.length > 3 && cut.endsWith("s") && !cut.endsWith("ss")) cut = cut.slice(0, -1);
    if (cut.length > 1 && !/^\d+$/.test(cut)) found.add(cut);
  };
  for (const word of text.toLowerCase().match(/[a-z0-9_]+/g) || []) {
    add(word);
    word.split("_").forEach(add);
  }
  return found;
}

class NearestIndex {
  constructor(documents) {
    this.words = new Map();
    this.totals = documents.map(() => 0);
    const entry = (word) => {
      if (!this.words.has(word)) this.words.set(word, { message: [], about: [] });
      return this.words.get(word);
    };
    documents.forEach(({ message, about }, i) => {
      const own = words(message);
      own.forEach((word) => entry(word).message.push(i));
      words(about).forEach((word) => own.has(word) || entry(word).about.push(i));
    });
    const count = documents.length;
    this.unknown = Math.log(1 + count);
    for (const word of this.words.values()) {
      word.weight = Math.log(1 + count / (word.message.length + word.about.length));
      word.message.forEach((i) => (this.totals[i] += word.weight));
    }
  }

  scores(text) {
    const shared = this.totals.map(() => 0);
    let total = 0;
    for (const word of words(text)) {
      const found = this.words.get(word);
      total += found ? found.weight : this.unknown / 2;
      if (!found) continue;
      found.message.forEach((i) => (shared[i] += found.weight));
      found.about.forEach((i) => (shared[i] += 0.35 * found.weight));
    }
    return shared.map((s, i) => (s > 0 ? Math.min(1, s / Math.sqrt(total * this.totals[i])) : 0));
  }
}

function patternRank(weight, captures) {
  if (weight >= 16) return 1;
  const captured = captures.map((capture) => {
    const letters = telling(capture);
    return capture.includes(" ") ? letters : Math.min(letters, 12);
  });
  return 0.4 + (0.6 * weight) / captured.reduce((sum, letters) => sum + letters, weight);
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

export class Matcher {
  /** `records`: what tools/site_records.py's finder_data makes. */
  constructor(records) {
    this.records = records;
    this.lines = [];
    records.forEach((record, entry) => {
      this.lines.push({ entry, pattern: new Pattern(record.errorMessage), own: true });
      record.wordings.forEach((text) =>
        this.lines.push({ entry, pattern: new Pattern(text), own: false }),
      );
    });
    // A document for each line: a page with many wordings is not further from each of them.
    this.index = new NearestIndex(
      records.flatMap((record) => [
        { message: record.errorMessage, about: [record.about, ...record.tags].join(" ") },
        ...record.wordings.map((message) => ({ message, about: "" })),
      ]),
    );
  }

  /** Best first: {record, score, names, captures}; score 1 for a recognised message. */
  find(text, limit = 5) {
    const whole = collapsed(text).toLowerCase();
    const found = this.records.map((record, entry) => ({
      record, entry, score: 0, rank: 0, named: false, raised: false, weight: 0, whole: false, own: true,
      mentioned: whole.includes(record.repo.split("/").pop().toLowerCase()),
      names: [], captures: [],
    }));
    found.forEach((ranked) => {
      const { id, slug, page } = ranked.record;
      const code = page.startsWith("PA") && new RegExp(`\\b${escaped(page)}\\b`, "i").test(whole);
      if (whole === id || whole === slug || code) {
        Object.assign(ranked, { named: true, score: 1, rank: 1 });
      }
    });
    const list = candidates(text);
    this.byPattern(list, found);
    this.byWords(list, found);
    const key = (r) => [r.rank, r.named, r.raised, r.weight, r.whole, r.own, r.mentioned].map(Number);
    const better = (a, b) => {
      const [x, y] = [key(a), key(b)];
      const i = x.findIndex((value, at) => value !== y[at]);
      return i < 0 ? a.entry - b.entry : y[i] - x[i];
    };
    return found.filter((r) => r.score >= 0.33).sort(better).slice(0, limit);
  }

  byPattern(list, found) {
    for (const candidate of list) {
      const lowered = candidate.text.toLowerCase();
      for (const { entry, pattern, own } of this.lines) {
        const ranked = found[entry];
        if (ranked.weight >= pattern.weight) continue;
        const match = pattern.find(candidate.text, lowered);
        if (match) {
          ranked.weight = pattern.weight;
          ranked.whole = match.whole;
          ranked.raised = ranked.raised || (candidate.raised && !candidate.joined);
          ranked.own = own;
          ranked.rank = Math.max(ranked.rank, patternRank(pattern.weight, match.captures));
          ranked.score = 1;
          ranked.names = pattern.names;
          ranked.captures = match.captures;
        } else if (!candidate.joined) {
          const part = pattern.partFoundIn(lowered);
          const score = Math.min(0.99, 0.5 + 0.5 * part);
          if (part > 0 && score >= ranked.rank) {
            ranked.score = Math.max(ranked.score, score);
            ranked.rank = score;
          }
        }
      }
    }
  }

  byWords(list, found) {
    const anyRaised = list.some((candidate) => candidate.raised);
    let surroundings = 0;
    const add = (text, share) => {
      this.index.scores(text).forEach((raw, i) => {
        const { entry, own } = this.lines[i];
        const score = Math.min(0.99, share * raw);
        found[entry].score = Math.max(found[entry].score, score);
        if (score > found[entry].rank) Object.assign(found[entry], { rank: score, own });
      });
    };
    for (const candidate of list) {
      const share = anyRaised && !candidate.raised ? 0.7 : 1;
      if (share < 1 && (surroundings += 1) > 16) continue;
      add(candidate.text, share);
      const colon = candidate.text.lastIndexOf(": ");
      if (candidate.raised && colon >= 0) add(candidate.text.slice(colon + 2), share);
    }
  }
}
