'use strict';
// Where everything lies: a block a rank, in it a line that sums up, and, if it is open, a lane for each state machine and each actor. Rows of spans
// never overlap, and are sorted: what is visible of them is found by bisection. Knows times and heights, no pixels of time.

// Lines that sum up closed ranks. The highest with which all ranks are in view are taken, and none that are lower than so many ranks need.
const LINES = [{height: 30, top: 5, states: 13, hooks: 20, hooksHeight: 6, ranks: 12}, {height: 15, top: 1, states: 9, hooks: 10.5, hooksHeight: 3, ranks: 48},
               {height: 7, top: 0.5, states: 3.5, hooks: 4.5, hooksHeight: 1.5, ranks: Infinity}];
const ROW_HEIGHT = 17, LANE_GAP = 7, RANK_GAP = 5;
const ROWS_MAX = 4;  // of one lane; what overlaps beyond that is cut

class SpanRow {
  constructor() { [this.begins, this.ends, this.events] = [[], [], []]; }
  get free() { return this.ends.length === 0 ? -Infinity : this.ends[this.ends.length - 1]; }
  push(begin, end, event) {
    begin = Math.max(begin, this.free);
    this.begins.push(begin);
    this.ends.push(Math.max(begin, end));
    this.events.push(event);
  }
  freeze() {
    this.begins = Float64Array.from(this.begins);
    this.ends = Float64Array.from(this.ends);
    this.events = Int32Array.from(this.events);
    return this;
  }
}

// Times as places along the axis, in seconds. Long times in which no rank recorded anything are folded to a short one, so that 20 ms of work are
// seen beside 6 s of waiting.
const FOLDS_MAX = 30, FOLD_FACTOR = 8;
class TimeScale {
  constructor(model) {
    const {begin, time, start, end} = model;
    const all = new Float64Array(2 * model.count + 2);
    all.set(begin);
    all.set(time, model.count);
    all.set([start, end], 2 * model.count);
    all.sort();
    const gaps = [];
    for (let i = 1; i < all.length; ++i)
      if (all[i] - all[i - 1] > (end - start) / 1000) gaps.push([all[i - 1], all[i]]);
    const length = ([from, to]) => to - from;
    gaps.sort((a, b) => length(a) - length(b));
    // Folded are those that are much longer than all other time together.
    let busy = gaps.reduce((rest, gap) => rest - length(gap), end - start), folded = gaps.length, shown = 0;
    gaps.forEach((gap, i) => {
      if (busy > 0 && length(gap) > FOLD_FACTOR * busy) [folded, shown] = [i, busy];
      busy += length(gap);
    });
    const count = gaps.length - folded;
    const width = shown / Math.max(10, 2 * count);
    this.found = count > FOLDS_MAX ? [] : gaps.slice(folded).map(([from, to]) => ({from, to, width})).sort((a, b) => a.from - b.from);
    this.setFolded(true);
  }

  setFolded(isFolded) {
    this.folds = isFolded ? this.found : [];
    let saved = 0;
    for (const fold of this.folds) {
      fold.place = fold.from - saved;
      saved += fold.to - fold.from - fold.width;
    }
  }
  // Both are steady, and the inverse of each other.
  placeOf(time) {
    for (let i = this.folds.length - 1; i >= 0; --i) {
      const {from, to, width, place} = this.folds[i];
      if (time >= from) return place + (time < to ? (time - from) / (to - from) * width : time - to + width);
    }
    return time;
  }
  timeOf(place) {
    for (let i = this.folds.length - 1; i >= 0; --i) {
      const {from, to, width, place: begin} = this.folds[i];
      if (place >= begin) return place - begin < width ? from + (place - begin) / width * (to - from) : place - begin - width + to;
    }
    return place;
  }
}

// `spans`: [begin, end, event], in any order.
function inRows(spans) {
  spans.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const rows = [];
  for (const [begin, end, event] of spans) {
    let row = rows.find(it => it.free <= begin);
    if (row === undefined && rows.length < ROWS_MAX) rows.push(row = new SpanRow());
    if (row === undefined) row = rows.reduce((best, it) => it.free < best.free ? it : best);
    row.push(begin, end, event);
  }
  return rows.map(row => row.freeze());
}

class Lanes {
  constructor(model) {
    this.model = model;
    this.rowOf = new Uint8Array(model.count);
    this.laneOf = new Uint16Array(model.count);  // within its rank
    this.ranks = model.ranks.map((rank, place) => this.build(rank, place));
    this.open = new Set();
    this.room = Infinity;
    this.layOut();
  }

  build(rank) {
    const model = this.model;
    const lanes = new Map();
    const lane = (key, label, isMachine) => {
      if (!lanes.has(key)) lanes.set(key, {label, isMachine, index: lanes.size, spans: [], hooks: [], points: [], last: null});
      return lanes.get(key);
    };
    // Machines first: what a rank is in says more than what it handles.
    for (const machine of [1, 2]) lane('=' + machine, MACHINES[machine], true);
    for (let at = rank.first; at < rank.last; ++at) {
      if (model.isChangeOfState(at)) {
        const machine = model.machine[at];
        const its = lane('=' + machine, MACHINES[machine], true);
        if (its.last !== null) its.spans.push([model.time[its.last], model.time[at], its.last]);
        its.last = model.state[at] === IDLE ? null : at;
        this.laneOf[at] = its.index;
        continue;
      }
      const its = lane(model.actor[at], model.names[model.actor[at]], false);
      this.laneOf[at] = its.index;
      if (model.kind[at] === BEGAN) {
        if (model.other[at] >= 0) continue;  // drawn with its end
        its.hooks.push([model.time[at], rank.end, at]);
      } else if (model.kind[at] === ENDED) {
        its.hooks.push([model.begin[at], model.time[at], at]);
      } else if (model.kind[at] === HANDLED || model.begin[at] < model.time[at]) {
        its.spans.push([model.begin[at], model.time[at], at]);
      } else {
        its.points.push(at);
      }
    }
    const built = [...lanes.values()];
    for (const its of built) {
      if (its.last !== null) its.spans.push([model.time[its.last], rank.end, its.last]);
      // What an actor handles, and sends, above what it works on.
      its.rows = inRows(its.spans);
      if (its.points.length !== 0 && its.rows.length === 0) its.rows.push(new SpanRow().freeze());
      its.rows.push(...inRows(its.hooks));
      its.rows.forEach((row, index) => row.events.forEach(event => {
        this.rowOf[event] = index;
        if (model.kind[event] === ENDED && model.other[event] >= 0) this.rowOf[model.other[event]] = index;
      }));
      its.points = Int32Array.from(its.points.sort((a, b) => model.time[a] - model.time[b]));
      its.pointTimes = Float64Array.from(its.points, at => model.time[at]);
      its.isEmpty = its.rows.length === 0 && its.points.length === 0;
      its.height = Math.max(1, its.rows.length) * ROW_HEIGHT + LANE_GAP;
      delete its.spans;
    }
    // The line that sums up has the rank's states above its hooks.
    const hooks = inRows(built.flatMap(its => its.hooks)).slice(0, 1);
    for (const its of built) delete its.hooks;
    return {lanes: built, states: built[0], hooks, top: 0, bottom: 0};
  }

  layOut() {
    for (const line of LINES) {
      this.layOutWith(line);
      if (this.height <= this.room || this.ranks.length <= line.ranks) break;
    }
  }
  layOutWith(closed) {
    let y = 0;
    this.ranks.forEach((rank, place) => {
      rank.top = y;
      rank.isOpen = this.open.has(place);
      rank.line = rank.isOpen ? LINES[0] : closed;
      y += rank.line.height;
      for (const lane of rank.lanes) {
        if (!this.hasOwnLine(rank, lane)) continue;
        lane.top = y;
        if (rank.isOpen) y += lane.height;
      }
      if (rank.isOpen) y += RANK_GAP;
      rank.bottom = y;
    });
    this.tops = Float64Array.from(this.ranks, rank => rank.top);
    this.height = y;
  }

  // The states of the rank are in the line that sums up.
  hasOwnLine(rank, lane) { return !lane.isEmpty && lane !== rank.states; }

  // How high the view of them is.
  setRoom(room) {
    this.room = room;
    this.layOut();
  }
  setOpen(places) {
    this.open = new Set(places);
    this.layOut();
  }
  toggle(place) {
    if (!this.open.delete(place)) this.open.add(place);
    this.layOut();
  }

  rankAt(y) { return y < 0 || y >= this.height ? -1 : lowerBound(this.tops, y + 1e-9) - 1; }
  // The middle of the event's row.
  yOf(at) {
    const rank = this.ranks[this.model.rank[at]];
    if (!rank.isOpen || rank.lanes[this.laneOf[at]] === rank.states) return rank.top + rank.line.top + rank.line.states / 2;
    const lane = rank.lanes[this.laneOf[at]];
    return lane.top + LANE_GAP / 2 + (this.rowOf[at] + 0.5) * ROW_HEIGHT;
  }
  // When what is drawn of the event begins and ends.
  extentOf(at) {
    const model = this.model;
    const drawn = model.kind[at] === BEGAN && model.other[at] >= 0 ? model.other[at] : at;
    const lane = this.ranks[model.rank[at]].lanes[this.laneOf[at]];
    const row = lane.rows[this.rowOf[drawn]];
    if (row !== undefined) {
      for (let i = lowerBound(row.begins, model.begin[drawn]); i < row.events.length && row.begins[i] <= model.time[drawn]; ++i)
        if (row.events[i] === drawn) return [row.begins[i], row.ends[i]];
    }
    return [model.begin[drawn], model.time[drawn]];
  }
  // All events of the event's lane, in order of time.
  eventsOfLane(rankPlace, laneIndex) {
    const lane = this.ranks[rankPlace].lanes[laneIndex];
    if (lane.ordered === undefined) {
      const all = [...lane.points];
      for (const row of lane.rows) all.push(...row.events);
      lane.ordered = Int32Array.from(all).sort((a, b) => this.model.begin[a] - this.model.begin[b] || a - b);
    }
    return lane.ordered;
  }
}
