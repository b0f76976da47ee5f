// Who is filtered out: the words in the search box, and the legend's hidden values.

import { BITS, NONE, round, UNLABELED } from "./fields.js";

// What numbers are called; the first is what a click on a bar writes.
const WORDS = {
  age: ["age", "aged"], heart_rate: ["rate", "heart rate", "hr"], pr: ["pr"], qrs: ["qrs"], qt: ["qt"], qtc_fridericia: ["qtc", "qtcf"], qtc_bazett: ["qtcb"],
  qrs_axis: ["axis", "qrs axis"], t_axis: ["t axis"], sdnn: ["sdnn"], rmssd: ["rmssd"], sokolow_lyon: ["sokolow"], quality: ["quality"],
  confidence: ["confidence"], seconds: ["length"], rate: ["sampling rate"], leads: ["leads"], recordings: ["recordings"],
};
const FIELDS = new Map(Object.entries(WORDS).flatMap(([field, words]) => words.map((word) => [word, field])));
const NUMBER = "-?\\d{1,5}(?:\\.\\d+)?";

const SEXES = { female: /^(fem|femal|females?|wom[ae]n)$/, male: /^(mal|males?|m[ae]n)$/ };
const NOISE = /^(and|or|of|with|in|the|years?|bpm|patients?|age|aged|heart|rate|hr)$/;
const SPAN = `(>=?|<=?|over|under|above|below)?\\s*(${NUMBER})(?:\\s*(?:-|–|to)\\s*(${NUMBER})|(\\+|\\s*(?:and|or) over))?`;
const RANGE = new RegExp(`\\b(${[...FIELDS.keys()].join("|")})\\s*[:=]?\\s*(?:(${NONE})\\b|${SPAN})(?:\\s*(?:years?|bpm|ms|mv|hz|s)\\b|\\s*[%°])?|\\b(\\d{1,3})\\s*(?:-|–|to)\\s*(\\d{1,3})\\s*(years?|bpm)\\b|\\b(over|under)\\s+(\\d{1,3})\\b`, "i");
const TOKEN = /"([^"]*)"?|no label\b|[^\s,;"]+/i;

export class Filter {
  constructor(app) {
    this.app = app;
    this.clauses = [];
    this.failed = null; // (n) bits of the fields that filter a patient out
  }

  // The words are read anew: [{field, text, words, …}], each with the text that it was made from.
  setText(text) {
    const { fields } = this.app;
    this.text = text;
    this.clauses = [];
    let rest = text, mergeable = false;
    while (rest.trim()) {
      const range = RANGE.exec(rest), token = TOKEN.exec(rest);
      if (!token) break;
      const own = range && range.index <= token.index ? range : token;
      const clause = own === range ? this.#range(range) : this.#word(token);
      rest = rest.slice(own.index + own[0].length);
      if (!clause) continue; // a word such as "and"
      const last = this.clauses.at(-1), common = mergeable && clause.loose ? last.mask & clause.mask : 0;
      if (common) { // "atrial fibrillation" is one label, "AF PVC" are two
        Object.assign(last, { mask: common, text: `${last.text} ${clause.text}` });
      } else this.clauses.push(clause);
      mergeable = Boolean(clause.loose);
    }
    for (const clause of this.clauses) if (clause.field === "labels") clause.words = this.#named(clause.mask, clause.none);
    this.missing = this.clauses.filter((one) => one.field in WORDS && !fields.all[one.field]); // not measured, or not here yet
    this.clauses = this.clauses.filter((one) => fields.all[one.field] || one.field === "patient");
  }

  #range([text, word, unknown, sign, from, to, plus, a, b, unit, alone, years]) {
    if (alone) return this.#range([text, "age", undefined, alone, years]);
    const field = word ? FIELDS.get(word.toLowerCase()) : /^y/i.test(unit) ? "age" : "heart_rate", { title = word, step = 1 } = this.app.fields.all[field] ?? {};
    const name = /^(Age|Heart rate|Quality|Confidence|Length|Sampling rate|Number of leads|Recordings)$/.test(title) ? title.toLowerCase() : title;
    if (unknown) return { field, text, unknown: true, words: `${name} ${NONE}` };
    let low = Number(from ?? a), high = Number(to ?? b ?? low);
    if (plus || /^(>|over|above)/i.test(sign ?? "")) { low = round(low + (/^(>|over|above)$/i.test(sign ?? "") ? step : 0)); high = Infinity; }
    else if (/^(<|under|below)/i.test(sign ?? "")) { high = round(/^(<|under|below)$/i.test(sign) ? low - step : low); low = -Infinity; }
    if (high < low) [low, high] = [high, low];
    const words = high === Infinity ? `${low} and over` : low === -Infinity ? `under ${round(high + step)}` : low === high ? low : `${low}–${high}`;
    return { field, text, low: Math.fround(low), high: Math.fround(high), words: `${name} ${words}` };
  }

  #word([text, quoted]) {
    const { fields, session } = this.app, labels = fields.all.labels.values, word = (quoted ?? text).toLowerCase().trim();
    if (!word || (quoted === undefined && NOISE.test(word))) return null;
    if (word === UNLABELED) return { field: "labels", text, mask: 0, none: true };
    const same = this.#masked(labels, (one) => (quoted === undefined ? exact(one, word) : one.value.toLowerCase() === word));
    if (same) return { field: "labels", text, mask: quoted === undefined ? this.#linked(labels, same) : same };
    for (const [value, pattern] of Object.entries(SEXES)) if (pattern.test(word)) return { field: "sex", text, value, words: value };
    for (const [field, least] of [["dataset", 3], ["split", 4]]) {
      const value = word.length >= least && fields.all[field]?.values.find((one) => one.value.toLowerCase().startsWith(word))?.value;
      if (value) return { field, text, value, words: value };
    }
    if (session.datasets.length === 1 && word.length > 2 && session.datasets[0].toLowerCase().startsWith(word)) return null; // everybody
    const mask = this.#masked(labels, (one) => prefixed(one, word));
    if (mask) return { field: "labels", text, mask, loose: true };
    if (quoted === undefined && FIELDS.has(word)) return null; // its number is about to be typed
    return { field: "patient", text, word, words: `“${quoted ?? text}”` };
  }

  #masked(labels, match) { return labels.slice(0, -1).reduce((mask, one, i) => (match(one) ? mask | (1 << i) : mask), 0); }

  // With the labels of other datasets that have the same code.
  #linked(labels, mask) {
    const codes = new Set(labels.filter((one, i) => one.code && mask & (1 << i)).map((one) => one.code));
    return mask | this.#masked(labels, (one) => codes.has(one.code));
  }

  // "Atrial fibrillation (AF, AFIB)", or the labels alone where they mean different things.
  #named(mask, none) {
    if (none) return UNLABELED;
    const found = this.app.fields.all.labels.values.filter((_, i) => mask & (1 << i)), names = new Set(found.map((one) => one.name));
    const listed = found.slice(0, 4).map((one) => one.value).join(", ") + (found.length > 4 ? ` and ${found.length - 4} more` : "");
    return names.size === 1 && found[0].name !== found[0].value ? `${found[0].name} (${listed})` : listed;
  }

  // Why the search finds nobody.
  why() {
    const { fields } = this.app, off = Object.entries(fields.off).filter(([, set]) => set.size);
    const named = this.clauses.filter((one) => one.field === "patient").map((one) => one.words);
    if (off.length) {
      const hidden = off.map(([, set]) => new Set(set));
      for (const [, set] of off) set.clear();
      this.apply();
      const found = this.shown;
      off.forEach(([, set], i) => hidden[i].forEach((value) => set.add(value)));
      this.apply();
      if (found) return `Nobody is shown: ${found.toLocaleString()} ${found === 1 ? "patient matches, whom" : "patients match, whom"} the legend hides`;
    }
    if (named.length) return `Nobody: no diagnosis, sex or dataset here begins with ${named.join(" or ")}, and no patient’s name`;
    return this.clauses.length > 1 ? "Nobody has all of these" : `Nobody has ${this.clauses[0].words}`;
  }

  remove(clause) { return tidy(this.clauses.filter((one) => one !== clause).map((one) => one.text).join(" ")); }

  // The search's text with or without one value of a field, as a click on its bar asks for.
  toggled(field, value) {
    const own = this.clauses.filter((one) => one.field === field && this.holds(one, value));
    if (own.length) return tidy(this.clauses.filter((one) => !own.includes(one)).map((one) => one.text).join(" "));
    const title = WORDS[field]?.[0], step = this.app.fields.all[field].step;
    const word = !title ? `"${value.value}"` : value.value === NONE ? `${title} ${NONE}`
      : value.high === Infinity ? `${title} ${value.low}+` : value.low === -Infinity ? `${title} <${round(value.high + step)}` : `${title} ${value.low}-${round(value.high)}`;
    return tidy(`${this.text} ${field === "sex" ? value.value : word}`);
  }

  // Whether a clause asks for a value.
  holds(clause, value) {
    const { fields } = this.app;
    if (clause.field === "labels") return value.value === UNLABELED ? Boolean(clause.none) : Boolean(clause.mask & (1 << fields.session.labels.indexOf(value.value)));
    if (fields.all[clause.field].numbers) return value.value === NONE ? Boolean(clause.unknown) : clause.low <= value.low && value.high <= clause.high;
    return clause.value === value.value;
  }

  // Fills `failed`; within a field one clause is enough, and all fields must agree.
  apply() {
    const { app } = this, { fields, columns } = app, n = columns.age.length;
    const failed = this.failed?.fill(0) ?? new Uint32Array(n);
    this.failed = failed;
    this.shown = n;
    const of = (field) => this.clauses.filter((one) => one.field === field);
    const labels = fields.all.labels.values, asked = of("labels"), off = fields.off.labels;
    let wanted = this.#masked(labels, (one) => !off.has(one.value)), unlabeled = !off.has(UNLABELED);
    if (asked.length) {
      wanted &= asked.reduce((mask, one) => mask | one.mask, 0);
      unlabeled &&= asked.some((one) => one.none);
    }
    this.wanted = wanted;
    if (asked.length || off.size) for (let i = 0; i < n; i++) if (columns.labels[i] ? !(columns.labels[i] & wanted) : !unlabeled) failed[i] |= BITS.labels;
    for (const [name, field] of Object.entries(fields.all)) {
      const clauses = of(name), hidden = fields.off[name];
      if (!field.codes || (!clauses.length && !hidden.size)) continue;
      const out = field.values.map((value) => hidden.has(value.value) || (!field.numbers && clauses.length > 0 && !clauses.some((one) => one.value === value.value)));
      const { codes, numbers } = field, bit = BITS[name], asked = numbers && clauses.length;
      const fits = (v) => clauses.some((one) => (Number.isNaN(v) ? one.unknown : v >= one.low && v <= one.high));
      for (let i = 0; i < n; i++) if (out[codes[i]] || (asked && !fits(numbers[i]))) failed[i] |= bit;
    }
    const people = of("patient");
    if (people.length) {
      const tests = people.map(({ word }) => this.#test(word));
      for (let i = 0; i < n; i++) if (!tests.some((test) => test(i))) failed[i] |= BITS.patient;
    }
    for (let i = 0; i < n; i++) if (failed[i]) this.shown--;
  }

  // Whether a row is the patient with this ID, or with a pseudonym that begins so.
  #test(word) {
    const { names, columns: { codes }, digits } = this.app;
    const nibbles = /^[0-9a-f]{2,}$/.test(word) && word.length <= 2 * digits ? Array.from(word, (c) => parseInt(c, 16)) : null;
    if (names && this.names?.of !== names) this.names = { of: names, lower: names.map((name) => name.toLowerCase()) };
    const lower = names && this.names.lower;
    return (row) => (nibbles?.every((v, k) => (codes[row * digits + (k >> 1)] >> (k & 1 ? 0 : 4) & 15) === v) ?? false) || (lower?.[row].includes(word) ?? false);
  }
}

const tidy = (text) => text.replace(/\s+/g, " ").trim();
const wordsOf = (label) => (label.parts ??= [label.value, label.name ?? "", ...(label.synonyms ?? [])].flatMap((text) => [text.toLowerCase(), ...text.toLowerCase().split(/[^\p{L}\p{N}~]+/u)]).filter(Boolean));
const prefixed = (label, word) => wordsOf(label).some((part) => part.startsWith(word));
const exact = (label, word) => label.value.toLowerCase() === word || (label.synonyms ?? []).some((one) => !one.includes(" ") && one.toLowerCase() === word);
