// The events of a timeline: columns that the server sent as typed arrays, and questions about them.
"use strict";

window.timeline = window.timeline || {};

(function () {
  const ARRAYS = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array };
  const KEPT = 6;
  const HUES = 5;
  const SHORTEST = 20;
  const BLOCK = 8;

  // The events of one file, or of a part of its time. Columns are in order of line, then of start; `count` is null where
  // each slice is one event. `shift` is added to all times, so that files of several ranks have one clock.
  class Events {
    constructor(header, columns, shift) {
      Object.assign(this, columns);
      Object.assign(this, { names: header.names, labels: header.labels, joined: header.joined, total: header.events, shift });
      this.lines = header.lines.map(([lane, device, depth, first, last]) => ({ lane, device, depth, first, last }));
      this.lineAt = new Map(this.lines.map((line) => [`${line.depth} ${line.lane}`, line]));
      this.hue = Uint8Array.from(this.names, hueOf);
      if (!this.count) this.count = null;
      this.low = this.start.length ? this.lines.reduce((low, line) => Math.min(low, this.start[line.first]), Infinity) : 0;
      this.high = this.lines.reduce((high, line) => Math.max(high, this.lastEnd(line)), this.low + 1);
    }

    // The label of slice `i`: a short name, or the name itself.
    label(i) { return this.labels[this.name[i]] || this.names[this.name[i]]; }

    countOf(i) { return this.count ? this.count[i] : 1; }

    lastEnd(line) {
      return line.last > line.first ? this.start[line.last - 1] + this.dur[line.last - 1] : 0;
    }

    // The first slice of a line that starts at `at` or later.
    from(line, at) {
      let low = line.first, high = line.last;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.start[middle] < at) low = middle + 1; else high = middle;
      }
      return low;
    }

    // The first slice of a line that is at least partly after `at`.
    firstVisible(line, at) {
      const i = this.from(line, at);
      return i > line.first && this.start[i - 1] + this.dur[i - 1] > at ? i - 1 : i;
    }

    // For each name 1 if it contains the text, in any case of letters, else 0.
    matching(text) {
      const wanted = text.toLowerCase();
      return Uint8Array.from(this.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    }

    lineOf(i) { return this.lines.find((line) => i >= line.first && i < line.last); }

    // Adds to `sums` ({name: {count, total}}) what lies in the lines between two times.
    addSums(lines, low, high, sums) {
      for (const line of lines) {
        for (let i = this.firstVisible(line, low); i < line.last && this.start[i] < high; i++) {
          const name = this.names[this.name[i]];
          const sum = sums.get(name) || { count: 0, total: 0, label: this.label(i), kind: this.kind[i] };
          sum.count += this.countOf(i);
          sum.total += Math.min(high, this.start[i] + this.dur[i]) - Math.max(low, this.start[i]);
          sums.set(name, sum);
        }
      }
    }

    // The time of each block of consecutive slices by category, and the longest slice of each block, so that blocks that
    // lie within one pixel need no look at their slices. `codes` has the category of each slice, or is null if all have
    // the same; what does not match counts for the last of `size` categories.
    blocks(codes, match, size) {
      const known = this.summed;
      if (known && known.codes === codes && known.match === match && known.size === size) return known;
      const number = Math.ceil(this.start.length / BLOCK), sums = new Float64Array(number * size), widest = new Float32Array(number);
      for (let i = 0; i < this.start.length; i++) {
        const block = (i / BLOCK) | 0, category = match && !match[this.name[i]] ? size - 1 : codes ? codes[i] : 0;
        sums[block * size + category] += this.dur[i];
        if (this.dur[i] > widest[block]) widest[block] = this.dur[i];
      }
      this.summed = { codes, match, size, sums, widest };
      return this.summed;
    }

    // How many events match, and how long they take.
    matched(match) {
      let count = 0, total = 0;
      for (let i = 0; i < this.name.length; i++) {
        if (match[this.name[i]]) { count += this.countOf(i); total += this.dur[i]; }
      }
      return { count, total };
    }

    // The matching slice that starts next after the time `at` (before it, if `back`) on one of the lines; -1: none.
    nextMatch(match, at, back, lines) {
      let found = -1;
      for (const line of lines) {
        const step = back ? -1 : 1;
        let i = back ? this.from(line, at) - 1 : this.from(line, at + 0.5);
        while (i >= line.first && i < line.last && !match[this.name[i]]) i += step;
        if (i < line.first || i >= line.last) continue;
        if (found < 0 || (this.start[i] < this.start[found]) !== back) found = i;
      }
      return found;
    }
  }

  // A number from 0 to HUES - 1 for a name, the same in every file.
  function hueOf(name) {
    let hash = 5381;
    for (let i = 0; i < name.length; i++) hash = ((hash * 33) ^ name.charCodeAt(i)) >>> 0;
    return hash % HUES;
  }

  // The layout of an answer: the length of a header (u32), the header as JSON, then the columns; each begins at a
  // multiple of eight bytes.
  function decode(buffer, shift) {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    const columns = {};
    let offset = rounded(8 + length);
    for (const [name, type] of header.columns) {
      columns[name] = new ARRAYS[type](buffer, offset, header.n);
      offset = rounded(offset + columns[name].byteLength);
    }
    if (shift) columns.start = columns.start.map((at) => at + shift);
    return new Events(header, columns, shift);
  }

  const rounded = (bytes) => (bytes + 7) & ~7;

  // Answers are kept, as the page is built anew at every click. {address: promise of Events}
  const answers = new Map();

  function load(src, shift) {
    const key = `${src} ${shift}`;
    const known = answers.get(key) || fetched(src, shift);
    answers.delete(key);
    answers.set(key, known);
    known.catch(() => answers.delete(key));
    if (answers.size > KEPT) answers.delete(answers.keys().next().value);
    return known;
  }

  async function fetched(src, shift) {
    const answer = await fetch(src);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return decode(await answer.arrayBuffer(), shift);
  }

  // The events of one file: of all its time, and of a part of it where the whole has too many.
  async function sourceOf(config) {
    const whole = await load(config.src, config.shift);
    const source = { ...config, whole, part: null };
    source.events = (view) => (source.part && source.part.low <= view.low && source.part.high >= view.high ? source.part.events : whole);
    source.fetchPart = async (low, high) => {
      const src = `${config.src}?from=${Math.max(0, low - config.shift)}&to=${high - config.shift}`;
      source.part = { low, high, events: await load(src, config.shift) };
    };
    return source;
  }

  Object.assign(window.timeline, { Events, sourceOf, SHORTEST, BLOCK });
})();
