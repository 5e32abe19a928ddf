// Says in words what is at a place of a timeline, or in a selected range.
"use strict";

(function () {
  const NAMES = 15;
  const HEAD = 24;
  const TAIL = 12;
  const KINDS = ["host", "compute", "communication", "memory", "idle"];
  const counted = new Intl.NumberFormat("en");
  const share = (part) => `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;

  // What is drawn at pixel `x` of a line: one slice, or all that share this column of pixels.
  function sliceAt(events, line, view, x, width) {
    const scale = width / (view.high - view.low);
    const low = view.low + x / scale, high = view.low + (x + 1) / scale;
    const found = [];
    for (let i = events.firstVisible(line, low); i < line.last && events.start[i] < high; i++) found.push(i);
    const wide = found.filter((i) => events.dur[i] * scale >= window.timeline.WIDE);
    if (wide.length) return { events, line, i: wide[0], count: 1, among: [] };
    if (!found.length) return null;
    const longest = found.reduce((best, i) => (events.dur[i] > events.dur[best] ? i : best));
    return { events, line, i: longest, count: found.reduce((sum, i) => sum + events.countOf(i), 0), among: found, low, high };
  }

  // The lines of text about a place: one event, or how many share a column and how their time divides into kinds.
  function description(hit) {
    const { events, i, among, count } = hit, { duration } = window.timeline;
    const name = events.names[events.name[i]].slice(0, 300);
    if (count === 1) return [name, `${duration(events.dur[i])}, from ${duration(events.start[i])}, ${KINDS[events.kind[i]]}`];
    if (among.length < 2) {
      return [name, `the longest of ${counted.format(events.countOf(i))} events; they take ${duration(events.dur[i])}. Zoom in.`];
    }
    const times = new Map();
    for (const one of among) times.set(events.kind[one], (times.get(events.kind[one]) || 0) + events.dur[one]);
    const total = [...times.values()].reduce((sum, one) => sum + one, 0);
    const parts = [...times].sort((a, b) => b[1] - a[1]).map(([kind, time]) => `${share(total ? time / total : 1)} ${KINDS[kind]}`);
    return [`${counted.format(count)} events here: ${parts.join(", ")}`, `they take ${duration(total)}; the longest is`, name];
  }

  // Writes into `place` what a selected range holds: its duration, the number of events, and sums by name.
  function showRange(place, picked, tracks, view) {
    const { duration, element } = window.timeline;
    const sums = new Map();
    for (const track of tracks) {
      const events = track.source.events(view);
      events.addSums(events.lines.filter((line) => line.lane === track.lane), picked.low, picked.high, sums);
    }
    const rows = [...sums.values()].sort((a, b) => b.total - a.total);
    const count = rows.reduce((sum, row) => sum + row.count, 0);
    const length = picked.high - picked.low;
    const body = element("tbody", "");
    for (const row of rows.slice(0, NAMES)) body.append(rowOf([row.label, counted.format(row.count), duration(row.total), share(row.total / length)]));
    const table = element("table", "");
    const caption = element("caption", `Time by name${rows.length > NAMES ? `, ${NAMES} of ${counted.format(rows.length)}` : ""}`);
    table.append(caption, element("thead", ""), body);
    table.querySelector("thead").append(rowOf(["name", "events", "time", "of range"], "th"));
    const among = tracks.length === 1 ? tracks[0].lane : `${tracks.length} tracks`;
    const wide = element("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": "time by name" });
    wide.append(table);
    place.replaceChildren(
      element("h2", `Selected: ${duration(length)}`),
      element("p", `${duration(picked.low)} to ${duration(picked.high)}, ${counted.format(count)} ${count === 1 ? "event" : "events"} on ${among}`),
      ...(rows.length ? [wide] : []),
    );
  }

  // Names of kernels differ at their beginnings and ends, so that a long name loses its middle.
  const withoutMiddle = (name) => (name.length > HEAD + TAIL ? `${name.slice(0, HEAD)}…${name.slice(-TAIL)}` : name);

  function rowOf(cells, tag) {
    const row = window.timeline.element("tr", "");
    row.append(...cells.map((text, i) => window.timeline.element(tag || "td", i ? text : withoutMiddle(text), i ? { class: "n" } : { title: text })));
    return row;
  }

  // How many events match a search, in words.
  function matchText(sources, matchOf) {
    const sums = sources.map((source) => source.whole.matched(matchOf(source.whole)));
    const count = sums.reduce((sum, one) => sum + one.count, 0), total = sums.reduce((sum, one) => sum + one.total, 0);
    return count ? `${counted.format(count)} ${count === 1 ? "match" : "matches"}, ${window.timeline.duration(total)}` : "no match";
  }

  // What stands on a slice: its name, or how many events it joins.
  const textOf = (events, i) => (events.countOf(i) > 1 ? `${counted.format(events.countOf(i))} events` : events.label(i));

  // Writes the colours that occur in the data into the list `place`.
  function writeLegend(place, legend, sources) {
    const used = new Set(sources.flatMap(({ by, whole }) => [...new Set(by === "phase" ? whole.phase : whole.kind)]));
    const entries = legend.filter((_, code) => used.has(code)).map(([text, colour]) => {
      const entry = window.timeline.element("li", text), swatch = window.timeline.element("span", "", { class: "swatch" });
      swatch.style.background = colour;
      entry.prepend(swatch);
      return entry;
    });
    place.replaceChildren(...entries);
  }

  Object.assign(window.timeline, { textOf, writeLegend, sliceAt, description, showRange, matchText, counted });
})();
