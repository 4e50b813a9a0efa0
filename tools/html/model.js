'use strict';
// What the page knows: the events of all ranks as columns of numbers, one entry an event. An event is its place in them; events of a rank
// lie together, in the order in which it recorded them. Knows nothing of drawing.

// Numbers of seven bits a byte, the lowest first, in base64. A missing column is all zeros.
function decodeColumn(text, take) {
  const bytes = atob(text);
  let value = 0, scale = 1, at = 0;
  for (let i = 0; i < bytes.length; ++i) {
    const byte = bytes.charCodeAt(i);
    value += (byte & 127) * scale;
    if (byte & 128) {
      scale *= 128;
      continue;
    }
    take(at++, value);
    value = 0;
    scale = 1;
  }
}
const unzigzag = value => value % 2 === 0 ? value / 2 : -(value + 1) / 2;

const FAILED = 1, WAITED = 2, LOST = 4;  // bits of `flags`
// As EventKind in base/observer.hpp.
const SENT = 1, HANDLED = 2, STATE = 3, ENDED = 4, BEGAN = 5, CALL = 6, FAILURE = 7, OUTCOME = 8;
const MACHINES = ['', 'rank', 'coordinator', 'succession'], IDLE = 1;

class Model {
  // `job` has what all of its attempts share.
  constructor(data, job) {
    this.data = data;
    this.names = data.names;
    this.texts = data.texts;
    this.kinds = job.kinds;
    this.states = job.states;
    this.count = data.ranks.reduce((sum, rank) => sum + rank.events, 0);
    this.ranks = data.ranks.map(rank => ({number: rank.rank, host: rank.host, process: rank.process, missing: rank.missing, first: 0, last: 0, failures: []}));
    const n = this.count;
    this.rank = new Uint16Array(n);  // place in `ranks`
    this.id = new Float64Array(n);
    this.time = new Float64Array(n);  // seconds from the first call; of what took time, its end
    this.begin = new Float64Array(n);
    this.queued = new Float64Array(n);
    this.bytes = new Float64Array(n);
    this.number = new Float64Array(n);
    this.cause = new Int32Array(n).fill(-1);
    this.peer = new Int32Array(n).fill(-1);
    this.kind = new Uint8Array(n);
    this.flags = new Uint8Array(n);
    this.machine = new Uint8Array(n);  // into MACHINES, 0: it is no change of state
    this.state = new Uint8Array(n);
    this.said = new Uint32Array(n);  // into `names`: what the actor did, of other events of the kind STATE
    this.actor = new Uint32Array(n);
    this.name = new Uint32Array(n);
    this.detail = new Uint32Array(n);  // into `names`, 0: none; so are phase and, into `texts`, text
    this.phase = new Uint32Array(n);
    this.text = new Uint32Array(n);
    this.read(data.ranks);
    this.join();
  }

  read(ranks) {
    let base = 0;
    ranks.forEach((rank, place) => {
      const {columns, events} = rank;
      const first = base;
      const column = (name, take) => columns[name] === undefined || decodeColumn(columns[name], (at, value) => take(first + at, value));
      this.rank.fill(place, first, first + events);
      let id = 0, time = 0;
      column('id', (at, value) => this.id[at] = id += value);
      column('time', (at, value) => this.time[at] = 1e-9 * (time += unzigzag(value)));
      for (const name of ['kind', 'flags', 'machine', 'state', 'said', 'actor', 'name', 'detail', 'phase', 'text', 'bytes', 'number'])
        column(name, (at, value) => this[name][at] = value);
      column('peer', (at, value) => this.peer[at] = value - 1);
      column('cause', (at, value) => this.cause[at] = value === 0 ? -1 : at - unzigzag(value));
      for (let at = first; at < first + events; ++at) this.begin[at] = this.time[at];
      column('duration', (at, value) => this.begin[at] -= 1e-9 * value);
      column('queued', (at, value) => this.queued[at] = 1e-9 * value);
      base += events;
      Object.assign(this.ranks[place], {first, last: base});
    });
  }

  // What follows from the columns: both ends of messages and hooks, how far time goes.
  join() {
    const n = this.count;
    this.other = new Int32Array(n).fill(-1);  // of a message, its other end; of a hook's end, its beginning, and the other way round
    this.start = Infinity;
    this.end = -Infinity;
    for (let at = 0; at < n; ++at) {
      const cause = this.cause[at];
      const isPair = cause >= 0 && !(this.flags[at] & WAITED) &&
        (this.kind[at] === HANDLED ? this.kind[cause] === SENT : this.kind[at] === ENDED && this.kind[cause] === BEGAN);
      if (isPair) {
        this.other[at] = cause;
        this.other[cause] = at;
      }
      if (this.begin[at] < this.start) this.start = this.begin[at];
      if (this.time[at] > this.end) this.end = this.time[at];
    }
    if (n === 0) [this.start, this.end] = [0, 1];
    if (this.end <= this.start) this.end = this.start + 1e-6;
    for (const rank of this.ranks) {
      rank.end = this.start;
      for (let at = rank.first; at < rank.last; ++at) rank.end = Math.max(rank.end, this.time[at]);
    }
    this.rankPlaces = new Map(this.ranks.map((rank, place) => [rank.number, place]));
    for (const failure of this.data.failures) {
      failure.label = `rank ${failure.rank} ${failure.kind}${failure.phase ? ' in ' + failure.phase : ''}`;
      const place = this.rankPlaces.get(failure.rank);
      if (place !== undefined) this.ranks[place].failures.push(failure);
    }
  }

  isChangeOfState(at) { return this.machine[at] !== 0; }
  stateName(at) { return this.states[this.machine[at]][this.state[at]]; }
  isMessage(at) { return this.kind[at] === SENT || this.kind[at] === HANDLED; }
  hasFailed(at) { return (this.flags[at] & FAILED) !== 0; }

  // From the first cause that the traces have to `at` itself.
  chain(at) {
    const seen = new Set();
    while (at >= 0 && !seen.has(at)) {
      seen.add(at);
      at = this.cause[at];
    }
    return [...seen].reverse();
  }

  // The event of that number in the trace of a rank; -1 if there is none.
  find(number, id) {
    const rank = this.ranks[this.rankPlaces.get(number)];
    const at = rank === undefined ? -1 : lowerBound(this.id, id, rank.first, rank.last);
    return rank !== undefined && at < rank.last && this.id[at] === id ? at : -1;
  }

  // The event of a rank that lasted most nearly from `begin` to `end`; -1 if it has none.
  lasting(number, begin, end) {
    const {first, last} = this.ranks[this.rankPlaces.get(number)];
    let best = -1, least = Infinity;
    for (let at = first; at < last; ++at) {
      const distance = Math.abs(this.begin[at] - begin) + Math.abs(this.time[at] - end);
      if (distance < least) [best, least] = [at, distance];
    }
    return best;
  }

  // What `at` led to directly, in order of time.
  effects(at) {
    const list = [];
    for (let i = 0; i < this.count; ++i)
      if (this.cause[i] === at) list.push(i);
    return list.sort((a, b) => this.time[a] - this.time[b]);
  }

  // As `cairn trace messages` says it.
  describe(at) {
    const name = this.names[this.name[at]];
    const actor = this.names[this.actor[at]];
    if (this.isChangeOfState(at)) return `${MACHINES[this.machine[at]]} is ${this.stateName(at)}`;
    const kind = this.kind[at];
    if (kind === STATE) return `${actor} ${this.names[this.said[at]]}`;
    let text = `${kind === CALL ? 'trainer' : actor} ${this.kinds[kind]} ${name}`;
    if (kind === FAILURE) text += this.peer[at] < 0 ? ' (this rank)' : ` (rank ${this.peer[at]})`;
    else if (this.peer[at] >= 0) text += ` ${kind === SENT ? 'to' : 'from'} rank ${this.peer[at]}`;
    if (kind === OUTCOME) text += this.hasFailed(at) ? ': failure' : ': success';
    return text;
  }

  // Events that have all words of `query`, in order of time.
  search(query) {
    const tests = query.trim().split(/\s+/).filter(word => word !== '').map(word => this.testOf(word));
    if (tests.length === 0) return new Int32Array(0);
    const found = [];
    for (let at = 0; at < this.count; ++at)
      if (tests.every(test => test(at))) found.push(at);
    return Int32Array.from(found).sort((a, b) => this.time[a] - this.time[b] || a - b);
  }

  testOf(word) {
    const lower = word.toLowerCase();
    const has = (table, part) => Uint8Array.from(table, text => text.toLowerCase().includes(part) ? 1 : 0);
    const [, field, value] = /^(rank|peer|actor|kind|name|type|phase):(.+)$/.exec(lower) || [];
    if (field === 'rank') return at => this.ranks[this.rank[at]].number === Number(value);
    if (field === 'peer') return at => this.peer[at] === Number(value);
    if (field === 'kind') {
      const kinds = has(this.kinds, value);
      return at => kinds[this.kind[at]] === 1;
    }
    if (field !== undefined) {
      const names = has(this.names, value);
      const column = this[field === 'type' ? 'name' : field];
      return at => names[column[at]] === 1;
    }
    if (/^#\d+$/.test(lower)) return at => this.id[at] === Number(lower.slice(1));
    if (lower === 'failed') return at => this.hasFailed(at);
    if (lower === 'lost') return at => (this.flags[at] & LOST) !== 0;
    const names = has(this.names, lower), texts = has(this.texts, lower), kinds = has(this.kinds, lower);
    return at => names[this.name[at]] + names[this.actor[at]] + names[this.detail[at]] + names[this.phase[at]] + texts[this.text[at]] +
      kinds[this.kind[at]] > 0;
  }
}

// First place in [from, to) of an ascending array that is not below `value`.
function lowerBound(array, value, from = 0, to = array.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

function durationText(seconds) {
  const size = Math.abs(seconds);
  if (size >= 100) return seconds.toFixed(1) + ' s';
  if (size >= 1) return seconds.toFixed(3) + ' s';
  if (size >= 1e-3) return (seconds * 1e3).toFixed(size >= 0.1 ? 1 : 3) + ' ms';
  if (size >= 1e-6) return (seconds * 1e6).toFixed(size >= 1e-4 ? 0 : 1) + ' us';
  return size === 0 ? '0' : (seconds * 1e9).toFixed(0) + ' ns';
}

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return (unit === 0 ? bytes : bytes.toFixed(1)) + ' ' + units[unit];
}
