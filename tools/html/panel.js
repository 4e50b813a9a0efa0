'use strict';
// The panel beside the chart: what happened, the selected event with what led to it, what was found. All texts of the trace are set as text, never as
// markup.

const CHAIN_SHOWN = 40, EFFECTS_SHOWN = 12, UNUSUAL_SHOWN = 6, FOUND_SHOWN = 100;

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

class Panel {
  constructor(page) {
    Object.assign(this, {page, model: page.model});
    this.event = document.getElementById('event_section');
    this.result = document.getElementById('result_section');
    document.getElementById('search').value = '';
    document.getElementById('found').textContent = '';
    this.result.hidden = true;
    this.showJob(document.getElementById('job_section'));
    this.showSummary(document.getElementById('summary_section'));
  }
  go(at) { this.page.select(at, true); }

  rankName(at) { return `rank ${this.model.ranks[this.model.rank[at]].number}`; }
  timeOfDay(seconds) {
    const day = ((this.model.data.begin_seconds_of_day + seconds) % 86400 + 86400) % 86400;
    const two = value => String(Math.floor(value)).padStart(2, '0');
    return `${two(day / 3600)}:${two(day / 60 % 60)}:${(day % 60).toFixed(6).padStart(9, '0')} UTC`;
  }

  // --- what happened ------------------------------------------------------------------------------------------------------

  // The saves and loads of the job, with bars as long as they took.
  showJob(section) {
    const {attempts} = this.page.job;
    section.hidden = attempts.length < 2;
    const most = Math.max(...attempts.map(attempt => attempt.seconds));
    const list = element('ol', {className: 'attempts'});
    const nameOf = ({operation, checkpoint_id: id}) => (operation === 'save' ? '' : operation + ' ') + id.replace(/\/+$/, '').split('/').pop();
    attempts.forEach((attempt, place) => {
      const end = attempt.slow ? 'slow' : attempt.end, bar = element('i', {className: 'bar ' + end});
      bar.style.width = 100 * attempt.seconds / most + '%';
      const parts = [element('time', {}, attempt.begin.slice(0, 12)), element('span', {className: 'name', title: `${attempt.operation}:${attempt.attempt}, ${attempt.title}`}, nameOf(attempt)),
                     element('span', {className: 'length'}, bar), element('span', {}, durationText(attempt.seconds)),
                     element('b', {className: end}, end === 'succeeded' ? '' : end)];
      const entry = attempt.exported ? element('a', {href: attempt.link}, ...parts)
        : element('span', {title: `Not on this page, which would grow too large: cairn trace export --attempt '${attempt.save_id}'`}, ...parts);
      if (place === this.page.place) entry.setAttribute('aria-current', 'true');
      list.append(element('li', {}, entry));
    });
    const count = word => {
      const number = attempts.filter(attempt => attempt.operation === word).length;
      return number === 0 ? [] : `${number} ${word}${number === 1 ? '' : 's'}`;
    };
    const unusual = attempts.filter(attempt => attempt.exported && (attempt.slow || attempt.end !== 'succeeded')).slice(0, UNUSUAL_SHOWN);
    const links = unusual.map(attempt => element('a', {href: attempt.link}, attempt.slow ? 'slow' : attempt.end));
    section.replaceChildren(element('h2', {}, [count('save'), count('load')].flat().join(', ') + ' ', ...links), list);
    list.querySelector('[aria-current]').scrollIntoView({block: 'nearest'});
  }

  showSummary(section) {
    const {data} = this.model;
    section.replaceChildren(element('h2', {}, 'What happened'), element('p', {className: 'where'}, data.summary[0]));
    const lines = element('ul', {className: 'lines'});
    for (const line of data.summary.slice(1)) {
      const [, word, text] = /^(\S*)\s+(.*)$/s.exec(line) || [null, '', line];
      lines.append(element('li', word === 'failed' ? {className: 'failed-text'} : {}, element('b', {}, word), element('span', {}, text)));
    }
    section.append(lines);
    const failures = data.failures.filter(failure => failure.event >= 0);
    if (failures.length !== 0) {
      section.append(element('h3', {}, failures.length === 1 ? 'The failure' : `The ${failures.length} failures`));
      section.append(this.steps(failures.slice(0, FOUND_SHOWN).map(failure => failure.event), -1, (at, i) => failures[i].label));
    }
    if (data.longest) {
      const {rank, what, begin, seconds} = data.longest;
      section.append(element('h3', {}, 'The longest step'), this.steps([this.model.lasting(rank, begin, begin + seconds)], -1, () => `${what}, ${durationText(seconds)}`, false));
    }
    if (data.end_event >= 0) section.append(element('h3', {}, 'The end'), this.steps([data.end_event]));
  }

  // --- an event -----------------------------------------------------------------------------------------------------------

  showEvent(at, isToBeSeen) {
    const {model, event} = this;
    event.hidden = at < 0;
    event.replaceChildren();
    if (at < 0) return;
    const failed = model.hasFailed(at);
    event.append(element('h2', failed ? {className: 'failed-text'} : {}, model.describe(at)));
    const {host, process} = model.ranks[model.rank[at]];
    event.append(element('p', {className: 'where'}, this.rankName(at) + (host ? `, process ${process} on ${host}` : '')));
    event.append(this.fields(at));
    if (model.text[at] !== 0) event.append(element('div', {className: failed ? 'quote failed' : 'quote', tabIndex: 0}, model.texts[model.text[at]]));
    this.otherEnd(at);
    const chain = model.chain(at), shown = this.steps(chain.slice(-CHAIN_SHOWN), at);
    shown.id = 'chain';
    event.append(element('h3', {}, chain.length > CHAIN_SHOWN ? `What led to it: the last ${CHAIN_SHOWN} of ${chain.length} steps` : 'What led to it'), shown);
    const effects = model.effects(at);
    if (effects.length !== 0) {
      event.append(element('h3', {}, 'What it led to'), this.steps(effects.slice(0, EFFECTS_SHOWN), at));
      if (effects.length > EFFECTS_SHOWN) event.append(element('p', {className: 'more where'}, `and ${effects.length - EFFECTS_SHOWN} more`));
    }
    if (isToBeSeen) event.scrollIntoView();
  }

  fields(at) {
    const {model} = this;
    const list = element('dl', {className: 'fields'});
    const add = (name, value) => list.append(element('dt', {}, name), element('dd', {}, value));
    const name = value => model.names[value];
    add('Time', `${durationText(model.time[at])} after the first call`);
    add('', this.timeOfDay(model.time[at]));
    add('Actor', name(model.actor[at]));
    add(model.isMessage(at) ? 'Type' : 'Name', name(model.name[at]));
    add('Kind', model.kinds[model.kind[at]].replace(/:$/, ''));
    if (model.peer[at] >= 0) add('Other rank', model.peer[at]);
    if (model.phase[at] !== 0) add('Phase', name(model.phase[at]));
    if (model.detail[at] !== 0) add(model.kind[at] === OUTCOME ? 'Committed' : 'Detail', name(model.detail[at]));
    if (model.begin[at] < model.time[at]) add('Took', durationText(model.time[at] - model.begin[at]));
    if (model.queued[at] > 0) add('Waited in the mailbox', durationText(model.queued[at]));
    if (model.isMessage(at) && model.peer[at] >= 0 && model.other[at] >= 0)
      for (const [name, value] of this.delays(...(model.kind[at] === SENT ? [at, model.other[at]] : [model.other[at], at]))) add(name, value);
    if (model.bytes[at] > 0) add('Bytes', bytesText(model.bytes[at]));
    if (model.number[at] > 0) add('Number', model.number[at]);
    add('Event', element('a', {href: this.page.linkTo(at), title: 'A link to this event'}, `#${model.id[at]}`));
    if (model.cause[at] >= 0) add('Cause', `#${model.id[model.cause[at]]} of ${this.rankName(model.cause[at])}`);
    if (model.kind[at] === BEGAN && model.other[at] < 0) add('Outcome', 'has not ended');
    else if (model.flags[at] & LOST) add('Outcome', 'never arrived');
    else if (model.hasFailed(at)) add('Outcome', 'failed');
    return list;
  }

  // What a message between ranks waited for: its sender, the way, its receiver.
  delays(sent, handled) {
    const {model} = this, cause = model.cause[sent];
    const reaction = model.effects(handled).find(at => model.rank[at] === model.rank[handled] && model.time[at] > model.time[handled]);
    const since = (from, to) => durationText(Math.max(0, model.begin[to] - model.time[from]));
    return [['Sender', cause < 0 ? '' : `${this.rankName(sent)} sent it ${since(cause, sent)} after its cause`], ['Wire', `${since(sent, handled)} on its way`],
            ['Receiver', reaction === undefined ? '' : `${this.rankName(handled)} acted ${since(handled, reaction)} later`]].filter(([, value]) => value !== '');
  }

  otherEnd(at) {
    const {model, event} = this;
    const other = model.other[at];
    if (other >= 0) {
      const who = `${model.names[model.actor[other]]} of ${this.rankName(other)}`, later = durationText(model.time[other] - model.time[at]);
      const text = model.kind[at] === SENT ? `Handled by ${who}, ${later} later` : model.kind[at] === HANDLED ? `Sent by ${who}`
        : model.kind[at] === BEGAN ? `Ended after ${later}` : 'Its beginning';
      event.append(element('p', {className: 'links'}, element('button', {id: 'other_end', onclick: () => this.go(other)}, text)));
    } else if (model.isMessage(at) && model.peer[at] >= 0) {
      event.append(element('p', {className: 'where'}, 'Its other end is not in the traces.'));
    }
  }

  // Events to go to, one a line.
  steps(events, current = -1, labelOf = null, areFailures = labelOf !== null) {
    const {model} = this;
    const list = element('ol', {className: 'steps'});
    events.forEach((at, i) => {
      const what = labelOf === null ? model.describe(at) : labelOf(at, i);
      const waited = at !== current && model.cause[at] >= 0 && model.flags[at] & WAITED ? element('small', {}, 'after a wait: nothing but time led to it') : null;
      const text = element('span', areFailures || model.hasFailed(at) ? {className: 'failed'} : {}, element('small', {}, this.rankName(at)), what, waited);
      const button = element('button', {onclick: () => this.go(at)}, element('time', {}, durationText(model.time[at])), text);
      button.dataset.event = at;
      if (at === current) button.setAttribute('aria-current', 'true');
      list.append(element('li', {}, button));
    });
    return list;
  }

  // --- what was found -----------------------------------------------------------------------------------------------------

  showFound(query, found, current) {
    this.result.hidden = query === '';
    this.result.replaceChildren();
    if (query === '') return;
    this.result.append(element('h2', {}, `${found.length.toLocaleString('en')} found`));
    const from = Math.max(0, Math.min(current - 3, found.length - FOUND_SHOWN));
    const shown = Array.from(found.subarray(from, from + FOUND_SHOWN));
    if (found.length > FOUND_SHOWN)
      this.result.append(element('p', {className: 'where'}, `${from + 1} to ${from + shown.length} are listed; n and N go on`));
    const list = this.steps(shown, current >= 0 ? found[current] : -1);
    list.id = 'found_list';
    this.result.append(list);
  }
}
