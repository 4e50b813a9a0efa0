'use strict';
// Puts the parts together, and turns keys and the pointer into what they do.

class Page {
  constructor(job) {
    this.job = job;
    this.overlay = document.getElementById('overlay');
    job.attempts.forEach((attempt, place) => attempt.link = '#' + (attempt.save_id || `call-${place + 1}`));
    this.followLink();
    listen(this);
  }

  // One save or load of the job.
  show(place) {
    this.place = place;
    this.isOpened = false;
    this.model = new Model(JSON.parse(document.getElementById('attempt_' + place).textContent), this.job);
    this.lanes = new Lanes(this.model);
    this.times = new TimeScale(this.model);
    this.view = {begin: 0, end: 1, scroll: 0, width: 1, height: 1, ratio: 1, selected: -1, chain: [],
                 matches: new Int32Array(0), matchTimes: new Float64Array(0)};
    this.painter = new Painter(this.overlay, this.model, this.lanes, this.view, this.times);
    this.painter.isSlow = this.attempt.slow;
    this.panel = new Panel(this);
    this.match = -1;
    this.failure = -1;
    this.query = '';
    this.head();
    this.resize();
    this.open();
    this.showFailure();
    this.isOpened = true;
  }
  get attempt() { return this.job.attempts[this.place]; }

  // `#<save>/<rank>/<event>`, or a part of it.
  linkTo(at) { return at < 0 ? this.attempt.link : `${this.attempt.link}/${this.model.ranks[this.model.rank[at]].number}/${this.model.id[at]}`; }
  followLink() {
    const {attempts} = this.job;
    const [save, rank, id] = location.hash.split('/');
    const named = attempts.findIndex(attempt => attempt.exported && attempt.link === save);
    const place = named >= 0 ? named : this.place ?? attempts.findIndex(attempt => attempt.first);
    if (place !== this.place) this.show(place);
    const at = named < 0 ? -1 : this.model.find(Number(rank), Number(id));
    if (at < 0 || at === this.selected) return;
    this.fit();
    this.select(at, true);
  }
  // The next save that is on this page (1), or the one before it (-1).
  showNext(direction) {
    const {attempts} = this.job;
    let place = this.place + direction;
    while (attempts[place] !== undefined && !attempts[place].exported) place += direction;
    if (attempts[place] !== undefined) location.hash = attempts[place].link;
  }
  get selected() { return this.view.selected; }
  get chain() { return this.view.chain; }

  head() {
    const {data} = this.model;
    document.title = data.title;
    document.getElementById('title').textContent = data.title;
    document.getElementById('title').title = data.title;
    const badge = document.getElementById('badge');
    badge.textContent = this.model.count === 0 ? 'empty' : data.end + (this.attempt.slow ? ', slow' : '');
    badge.className = `badge ${this.attempt.slow ? 'slow' : data.end}`;
    const count = value => value.toLocaleString('en');
    document.getElementById('subtitle').textContent =
      `${durationText(data.seconds)} from ${data.begin_time} UTC; ${count(data.world_size)} ranks, ${count(this.model.count)} events, ` +
      `${count(this.painter.arrows.remote.length)} messages between ranks` + (data.truncated ? '; too long: later events are left out' : '');
    this.shownFailures = data.failures.filter(failure => failure.event >= 0);
    document.getElementById('to_failure').hidden = this.shownFailures.length === 0;
    document.getElementById('fold').hidden = this.times.found.length === 0;
  }

  // All ranks are open from the beginning if they fit, or else those that failed, and the coordinator.
  open() {
    const {data, ranks} = this.model;
    const places = ranks.map((rank, place) => place).filter(place => !ranks[place].missing);
    const isSlow = place => this.attempt.slow && ranks[place].number === data.longest?.rank;
    const isTelling = place => ranks[place].failures.length !== 0 || ranks[place].number === data.coordinator || isSlow(place);
    this.lanes.setOpen(places);
    if (this.lanes.height > this.lanes.room) this.lanes.setOpen(places.filter(isTelling));
    this.nameButtons();
  }

  // --- view ---------------------------------------------------------------------------------------------------------------

  resize() {
    const {view} = this;
    const box = this.overlay.getBoundingClientRect();
    view.ratio = window.devicePixelRatio || 1;
    view.width = Math.max(GUTTER + 50, box.width);
    view.height = Math.max(AXIS_HEIGHT + 20, box.height);
    this.overlay.width = Math.round(view.width * view.ratio);
    this.overlay.height = Math.round(view.height * view.ratio);
    this.lanes.setRoom(view.height - AXIS_HEIGHT);
    this.change();
  }

  change() {
    const {view, lanes, painter} = this;
    view.scroll = Math.max(0, Math.min(view.scroll, lanes.height + 30 - (view.height - AXIS_HEIGHT)));
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      painter.draw();
      const note = document.getElementById('note');
      note.textContent = this.model.count === 0 ? 'No events are in this trace.' : painter.arrows.note;
      note.hidden = note.textContent === '';
    });
  }

  // The whole call, and a little around it. This and what follows is in places on the time scale.
  get whole() {
    const [start, end] = [this.model.start, this.model.end].map(time => this.times.placeOf(time));
    const margin = (end - start) * 0.02;
    return [start - margin, end + margin];
  }
  setTimes(begin, end) {
    const [first, last] = this.whole;
    const length = Math.min(Math.max(end - begin, 20e-9), (last - first) * 1.5);
    const middle = Math.min(Math.max((begin + end) / 2, first), last);
    this.view.begin = middle - length / 2;
    this.view.end = middle + length / 2;
    this.change();
  }
  zoom(factor, time) {
    const {begin, end} = this.view;
    const at = time === undefined ? (begin + end) / 2 : this.times.placeOf(time);
    this.setTimes(at - (at - begin) * factor, at + (end - at) * factor);
  }
  pan(share) {
    const shift = (this.view.end - this.view.begin) * share;
    this.setTimes(this.view.begin + shift, this.view.end + shift);
  }
  fit() { this.setTimes(...this.whole); }

  scrollTo(at) {
    const {view, lanes} = this;
    const y = lanes.yOf(at), seen = view.height - AXIS_HEIGHT;
    if (y < view.scroll + 20 || y > view.scroll + seen - 20) view.scroll = y - seen / 2;
  }

  // --- selection ----------------------------------------------------------------------------------------------------------

  select(at, isToBeSeen = false) {
    this.panel.showEvent(at, this.isOpened);
    this.view.selected = at;
    this.view.chain = at < 0 ? [] : this.model.chain(at);
    const announced = at < 0 ? 'Nothing is selected' : `${this.panel.rankName(at)}: ${this.model.describe(at)}, at ${durationText(this.model.time[at])}`;
    document.getElementById('announcer').textContent = announced;
    history.replaceState(null, '', this.linkTo(at));
    if (at >= 0 && isToBeSeen) {
      const {view, model} = this;
      const length = view.end - view.begin, margin = length * 0.05, place = this.times.placeOf(model.time[at]);
      if (place < view.begin + margin || place > view.end - margin) this.setTimes(place - length / 2, place + length / 2);
      this.scrollTo(at);
    }
    this.change();
  }

  zoomToSelected() {
    if (this.selected < 0) return;
    const [begin, end] = this.lanes.extentOf(this.selected).map(time => this.times.placeOf(time));
    const length = Math.max(end - begin, (this.view.end - this.view.begin) / 20, 1e-6);
    this.setTimes((begin + end) / 2 - length, (begin + end) / 2 + length);
    this.scrollTo(this.selected);
    this.change();
  }

  // Where the page opens: at the first failure, with the time between its beginning and the moment at which the others were told of it.
  showFailure() {
    const {model, lanes} = this;
    if (this.shownFailures.length === 0) {
      this.fit();
      const {longest} = model.data;
      if (this.attempt.slow && longest) {
        this.select(model.lasting(longest.rank, longest.begin, longest.begin + longest.seconds), true);
        this.fit();
      }
      if (model.data.end === 'unfinished' && model.data.end_event < 0 && model.count > 0) {
        let last = 0;
        for (let at = 1; at < model.count; ++at)
          if (model.time[at] > model.time[last]) last = at;
        this.select(last, true);
      }
      return;
    }
    this.failure = (this.failure + 1) % this.shownFailures.length;
    const {event, at, told} = this.shownFailures[this.failure];
    const [begin] = lanes.extentOf(event);
    const first = this.times.placeOf(Math.min(begin, at)), last = this.times.placeOf(Math.max(at, told === null ? at : told));
    const [start, end] = this.whole;
    const length = Math.min(end - start, Math.max((last - first) * 1.6, (end - start) / 8));
    const middle = (first + last) / 2;
    this.setTimes(middle - length / 2, middle + length / 2);
    this.select(event);
    this.view.scroll = lanes.ranks[model.rank[event]].top - 40;
    this.scrollTo(event);
    this.change();
  }

  // Of the selected event's lane, the one after (1) or before it (-1).
  step(direction) {
    if (this.model.count === 0) return;
    if (this.selected < 0) return this.select(this.nearest(this.lanes.rankAt(this.view.scroll + 1)), true);
    const {model, lanes} = this;
    const drawn = model.kind[this.selected] === BEGAN && model.other[this.selected] >= 0 ? model.other[this.selected] : this.selected;
    const events = lanes.eventsOfLane(model.rank[drawn], lanes.laneOf[drawn]);
    const next = events[events.indexOf(drawn) + direction];
    if (next !== undefined) this.select(next, true);
  }
  // Into the lane above or below, to the event that is nearest in time.
  stepLane(direction) {
    const {model, lanes} = this;
    if (this.selected < 0) return this.step(1);
    const time = model.time[this.selected];
    const all = [];
    lanes.ranks.forEach((rank, place) => rank.lanes.forEach(lane => {
      if (!lane.isEmpty && (rank.isOpen || lane === rank.states)) all.push([place, lane.index]);
    }));
    const place = model.rank[this.selected];
    let here = all.findIndex(([rank, lane]) => rank === place && lane === lanes.laneOf[this.selected]);
    if (here < 0) here = all.findIndex(([rank]) => rank === place);
    const to = all[here + direction];
    if (to !== undefined) this.select(this.nearestInLane(...to, time), true);
  }
  nearest(place) {
    const lane = this.lanes.ranks[Math.max(0, place)].lanes.find(it => !it.isEmpty);
    return lane === undefined ? -1 : this.nearestInLane(Math.max(0, place), lane.index, this.painter.timeAt((GUTTER + this.view.width) / 2));
  }
  nearestInLane(place, laneIndex, time) {
    const events = this.lanes.eventsOfLane(place, laneIndex);
    let best = events[0];
    for (const at of events)
      if (Math.abs(this.model.begin[at] - time) < Math.abs(this.model.begin[best] - time)) best = at;
    return best;
  }

  toggle(place) {
    this.lanes.toggle(place);
    this.nameButtons();
    this.change();
  }
  toggleAll() {
    const all = this.model.ranks.map((rank, place) => place).filter(place => !this.model.ranks[place].missing);
    this.lanes.setOpen(this.lanes.open.size === 0 ? all : []);
    this.nameButtons();
    if (this.selected >= 0) this.scrollTo(this.selected);
    this.change();
  }
  toggleFolds() {
    const middle = this.painter.timeAt((GUTTER + this.view.width) / 2), isWhole = this.view.end - this.view.begin > 0.99 * (this.whole[1] - this.whole[0]);
    this.times.setFolded(this.times.folds.length === 0);
    this.nameButtons();
    const place = this.times.placeOf(middle), half = (this.view.end - this.view.begin) / 2;
    if (isWhole) this.fit();
    else this.setTimes(place - half, place + half);
  }
  nameButtons() {
    document.getElementById('expand').textContent = this.lanes.open.size === 0 ? 'Open all' : 'Close all';
    document.getElementById('fold').textContent = this.times.folds.length === 0 ? 'Fold gaps' : 'Unfold gaps';
  }

  // --- search -------------------------------------------------------------------------------------------------------------

  search(query) {
    this.query = query.trim();
    const {view, model} = this;
    view.matches = model.search(this.query);
    view.matchTimes = Float64Array.from(view.matches, at => model.time[at]);
    // The first one that is in view, or the first one.
    const inView = lowerBound(view.matchTimes, this.painter.timeAt(GUTTER));
    this.match = view.matchTimes[inView] <= this.painter.timeAt(view.width) ? inView : Math.min(0, view.matches.length - 1);
    this.showMatches();
    this.change();
  }
  showMatches() {
    const {matches} = this.view;
    const found = document.getElementById('found');
    found.textContent = this.query === '' ? '' : matches.length === 0 ? 'none' : `${(this.match + 1).toLocaleString('en')} / ${matches.length.toLocaleString('en')}`;
    found.classList.toggle('none', this.query !== '' && matches.length === 0);
    this.panel.showFound(this.query, matches, this.match);
  }
  goToMatch(step) {
    const {matches} = this.view;
    if (matches.length === 0) return;
    this.match = (this.match + step + matches.length) % matches.length;
    this.showMatches();
    this.select(matches[this.match], true);
  }
}

const page = new Page(JSON.parse(document.getElementById('job').textContent));
