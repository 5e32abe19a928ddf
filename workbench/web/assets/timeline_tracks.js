// The tracks of a timeline (a stream or thread of a rank): where each is, and their heads with buttons to fold and pin.
"use strict";

(function () {
  const ROW = 18;
  const SPACE = 8;
  const RULER = 28;
  const MOST = 500;

  // Creates an HTML element with text and attributes.
  function element(tag, text, attributes) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    return made;
  }

  class Tracks {
    constructor(sources, state) {
      const all = sources.flatMap(tracksOf);
      this.all = all.slice(0, MOST);
      this.left = all.length - this.all.length;
      for (const track of this.all) {
        track.pinned = state.pin.includes(track.key);
        track.folded = state.fold.includes(track.key);
      }
      this.arrange();
    }

    // Computes where each track is: pinned ones stay at the top, the others scroll below them.
    arrange() {
      const pinned = this.all.filter((track) => track.pinned), rest = this.all.filter((track) => !track.pinned);
      this.pinnedHeight = stacked(pinned);
      this.height = RULER + this.pinnedHeight + stacked(rest);
    }

    // The track of a file and a lane.
    of({ file, lane }) { return this.all.find((track) => track.source.key === file && track.lane === lane); }

    // The y of the top of a track on the canvas.
    top(track, scroll) {
      return RULER + track.offset + (track.pinned ? 0 : this.pinnedHeight - scroll);
    }

    // The track and nesting depth at a y of the canvas; null between tracks and outside.
    at(y, scroll) {
      if (y < RULER) return null;
      const held = y < RULER + this.pinnedHeight;
      for (const track of this.all.filter((one) => one.pinned === held)) {
        const depth = Math.floor((y - this.top(track, scroll)) / ROW);
        if (depth >= 0 && depth < rows(track)) return { track, depth };
      }
      return null;
    }

    // The tracks of which a part is between two y.
    between(y0, y1, scroll) {
      return this.all.filter((track) => this.top(track, scroll) < y1 && this.top(track, scroll) + rows(track) * ROW > y0);
    }

    keys(property) { return this.all.filter((track) => track[property]).map((track) => track.key); }

    // Writes the heads anew; `changed(track, property)` is called when a button is pressed.
    heads(place, changed) {
      const layers = ["held", "moving"].map((name) => element("div", "", { class: name }));
      for (const track of this.all) layers[track.pinned ? 0 : 1].append(head(track, changed));
      place.replaceChildren(...layers);
      layers[0].style.height = `${RULER + this.pinnedHeight}px`;
    }

    // Moves the heads that scroll.
    scrollHeads(place, scroll) {
      for (const node of place.querySelectorAll(".head")) node.style.top = `${this.top(node.track, scroll)}px`;
    }
  }

  const rows = (track) => (track.folded ? 1 : track.depths);

  // Puts tracks below each other; returns their height.
  function stacked(tracks) {
    let offset = 0;
    for (const track of tracks) {
      track.offset = offset;
      offset += rows(track) * ROW + SPACE;
    }
    return offset;
  }

  function tracksOf(source) {
    const tracks = new Map();
    for (const line of source.whole.lines) {
      const key = `${source.key}.${[...tracks.keys()].includes(line.lane) ? [...tracks.keys()].indexOf(line.lane) : tracks.size}`;
      const track = tracks.get(line.lane) || { key, source, lane: line.lane, device: line.device, number: tracks.size, depths: 0 };
      track.depths = Math.max(track.depths, line.depth + 1);
      tracks.set(line.lane, track);
    }
    return [...tracks.values()];
  }

  function head(track, changed) {
    const node = element("div", "", { class: track.device ? "head device" : "head" });
    const { title: rank, short } = track.source, title = rank ? `${rank}, ${track.lane}` : track.lane;
    // A narrow window has room for the number of a thread, which tells it from others, if the word is left out.
    const lane = window.matchMedia("(max-width: 600px)").matches ? track.lane.replace(/^thread (?=\d)/, "") : track.lane;
    const shown = short ? `${short} ${lane}` : lane;
    const sign = track.depths === 1 ? "" : track.folded ? "▸ " : "▾ ";
    const fold = element("button", sign + shown, { "aria-expanded": !track.folded, "aria-label": title, title });
    node.track = track;
    const pin = element("button", track.pinned ? "unpin" : "pin", { class: "pin", "aria-label": `${track.pinned ? "unpin" : "pin"} ${title}` });
    fold.addEventListener("click", () => changed(track, "folded"));
    pin.addEventListener("click", () => changed(track, "pinned"));
    node.style.height = `${rows(track) * ROW}px`;
    node.append(fold, pin);
    return node;
  }

  Object.assign(window.timeline, { Tracks, element, rows, ROW, RULER });
})();
