#!/usr/bin/env python3
"""The page of `cairn trace export --to html` in a headless chromium: what is drawn, found, clicked and said.

usage: trace_page_test.py CAIRN MAKE_TRACES [unittest arguments]      exits with 77 where there is no chromium
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import Browser, find_chromium

CAIRN, MAKE_TRACES = (os.path.abspath(path) for path in sys.argv[1:3])
RANKS, MESSAGES = 4, 50
SAVES, SLOW = 5, 1  # of a job
LARGE_RANKS, LARGE_MESSAGES = 64, 10_000


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="cairn-page-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def export(self, mode, ranks=RANKS, messages=MESSAGES, without=()):
        traces = os.path.join(self.root, f"{mode}-{ranks}-{messages}-{len(without)}")
        page = traces + ".html"
        if not os.path.exists(page):
            subprocess.run([MAKE_TRACES, traces, mode, str(ranks), str(messages)], check=True)
            for name in os.listdir(traces):
                if any(name.startswith(f"rank-{rank:05}-") for rank in without):
                    os.unlink(os.path.join(traces, name))
            subprocess.run([CAIRN, "trace", "export", traces, "--to", "html", "-o", page], check=True)
        return page

    def open(self, mode, **size):
        path = self.export(mode, **size)
        self.browser.open(path)
        self.assertEqual(self.browser.requests, ["file://" + path], "the page asks for something else")

    def open_slow(self, **size):
        self.open("job", messages=SAVES, **size)
        self.tell(f"document.querySelectorAll('.attempts a')[{SLOW}].click()")
        self.browser.drawn()

    def tell(self, expression):
        return self.browser.evaluate(expression)

    def text(self, selector):
        return self.tell(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def find(self, query):
        """Types into the search; how many there are."""
        self.browser.press("Escape")
        self.browser.press("/")
        self.browser.type(query)
        self.browser.press("Enter")
        return self.tell("page.view.matches.length")

    def place_of(self, event):
        """Where an event is on the screen."""
        return self.tell(f"""(() => {{
            const box = page.overlay.getBoundingClientRect(), [begin, end] = page.lanes.extentOf({event});
            return [box.left + page.painter.x((begin + end) / 2), box.top + page.lanes.yOf({event}) - page.view.scroll + AXIS_HEIGHT];
        }})()""")

    def pixels(self, *places):
        """Red, green, blue of the chart at each of these places."""
        return self.tell(f"""(() => {{
            const {{canvas}} = page.painter, copy = document.createElement('canvas');
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const c = copy.getContext('2d', {{willReadFrequently: true}});
            c.drawImage(canvas, 0, 0);
            return {json.dumps(places)}.map(([x, y]) => Array.from(c.getImageData(x, y, 1, 1).data).slice(0, 3));
        }})()""")

    def check_all_is_in_view(self):
        for one, other in zip(self.tell("[page.view.begin, page.view.end]"), self.tell("page.whole")):
            self.assertAlmostEqual(one, other, places=9)

    def colours(self):
        """How many different ones the chart has: of nothing drawn, a few."""
        return self.tell("""(() => {
            const {canvas} = page.painter, copy = document.createElement('canvas');
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const c = copy.getContext('2d', {willReadFrequently: true});
            c.drawImage(canvas, 0, 0);
            return new Set(new Uint32Array(c.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
        })()""")


class Failure(PageTest):
    def test_it_opens_at_the_failure(self):
        self.open("failed")
        selected = self.tell("[page.model.describe(page.selected), page.model.ranks[page.model.rank[page.selected]].number]")
        self.assertEqual(selected, ["storage ended write_data", 1])
        x, y = self.place_of("page.selected")
        box = self.tell("(({left, right, top, bottom}) => [left, right, top, bottom])(page.overlay.getBoundingClientRect())")
        at = self.tell("page.overlay.getBoundingClientRect().left + page.painter.x(page.shownFailures[0].at)")
        self.assertTrue(box[0] < at < box[1] and box[2] < y < box[3], (x, y, at, box))
        self.assertEqual(self.text("#badge"), "failed")
        self.assertIn("rank 1 raised in write", self.text("#summary_section"))
        self.assertIn("the disk is full", self.text("#event_section .quote"))
        self.assertIn("run/step_1", self.tell("document.title"))

    def test_the_failure_and_its_rank_are_drawn_in_red(self):
        self.open("failed")
        x, y, bottom = self.tell("[Math.round(page.painter.x(page.shownFailures[0].at)), page.lanes.ranks[1].top - page.view.scroll + AXIS_HEIGHT + 15, "
                                 "page.view.height - 5]")
        line, edge, beside = self.pixels([x, bottom], [1, y], [x - 20, bottom])
        for red, green, blue in (line, edge):
            self.assertGreater(red, 2 * max(green, blue))
        self.assertLess(max(beside) - min(beside), 30)

    def test_search_finds_messages_and_goes_from_one_to_the_next(self):
        self.open("failed")
        self.assertEqual(self.find("PhaseFailed kind:handled"), 1)
        self.assertEqual(self.text("#event_section h2"), "supervisor handled PhaseFailed from rank 1")
        self.assertEqual(self.text("#found"), "1 / 1")
        self.assertEqual(self.find("SignOfLife kind:sent rank:2 peer:0"), len([i for i in range(MESSAGES) if i % 3 and (3 + i % 3) % 4 == 0]))
        first = self.tell("page.selected")
        self.browser.press("Enter")
        self.assertNotEqual(self.tell("page.selected"), first)
        self.assertEqual(len(self.tell("[...document.querySelectorAll('#found_list button')].map(it => it.innerText)")),
                         self.tell("page.view.matches.length"))
        self.assertEqual(self.find("nothing-of-this-name"), 0)
        self.assertEqual(self.text("#found"), "none")
        self.assertEqual(self.find("disk full rank:1"), 2)
        self.assertEqual(self.find("failed kind:ended"), 1)

    def test_a_search_begins_in_view_or_else_at_the_first_match(self):
        self.open("failed")
        self.tell("page.setTimes(page.whole[1] - 1e-6, page.whole[1])")
        self.assertGreater(self.find("SignOfLife kind:sent"), 2)
        self.assertEqual(self.tell("page.match"), 0)
        self.tell("page.select(page.view.matches[5], true); page.zoomToSelected()")
        begin, end = self.tell("[page.view.begin, page.view.end]")
        self.find("SignOfLife kind:sent")
        self.assertGreater(self.tell("page.match"), 0)
        self.assertTrue(begin <= self.tell("page.model.time[page.selected]") <= end)

    def test_a_click_on_a_message_shows_its_fields_its_other_end_and_its_causes(self):
        self.open("failed")
        event = self.tell("page.model.search('PhaseFailed kind:handled')[0]")
        self.tell(f"page.select({event}, true); page.zoomToSelected(); page.select(-1)")
        self.browser.drawn()
        self.browser.click(*self.place_of(event))
        self.assertEqual(self.tell("page.selected"), event)
        shown = self.text("#event_section")
        for part in ("supervisor handled PhaseFailed from rank 1", "rank 0", "Sent by supervisor of rank 1", "What led to it"):
            self.assertIn(part, shown)
        chain = self.tell("[...document.querySelectorAll('#chain button')].map(it => it.innerText)")
        self.assertRegex(chain[-1], "handled PhaseFailed")
        self.assertRegex(chain[-2], "rank 1\\s+supervisor sent PhaseFailed to rank 0")
        self.assertRegex(chain[-3], "rank 1\\s+storage ended write_data")
        # Each of them leads there.
        self.tell("[...document.querySelectorAll('#chain button')].at(-3).click()")
        self.browser.drawn()
        self.assertEqual(self.text("#event_section h2"), "storage ended write_data")
        self.assertIn("supervisor sent PhaseFailed", self.text("#event_section"))

    def test_a_click_on_an_arrow_selects_its_message(self):
        self.open("failed")
        event = self.tell("page.model.search('PhaseFailed kind:handled')[0]")
        self.tell(f"page.select({event}, true); page.zoomToSelected(); page.zoom(0.05, page.model.time[{event}] - 15e-6); page.select(-1)")
        self.browser.drawn()
        x, y = self.tell(f"""(() => {{
            const box = page.overlay.getBoundingClientRect(), arrow = page.painter.arrows.drawn.find(it => it.head === {event});
            return [box.left + (arrow.x0 + arrow.x1) / 2, box.top + (arrow.y0 + arrow.y1) / 2];
        }})()""")
        self.browser.click(x, y)
        self.assertEqual(self.tell("page.selected"), event)

    def test_the_chain_is_that_of_cairn_trace_explain(self):
        self.open("failed")
        explained = subprocess.run([CAIRN, "trace", "explain", self.export("failed")[:-5], "--json"], check=True, stdout=subprocess.PIPE)
        steps = json.loads(explained.stdout)[0]["steps"]
        self.assertGreater(len(steps), 3)
        self.assertEqual(self.tell("page.chain.map(at => [page.model.ranks[page.model.rank[at]].number, page.model.id[at]])"),
                         [[step["rank"], step["id"]] for step in steps])

    def test_every_event_is_there_with_its_fields(self):
        self.open("failed")
        listed = subprocess.run([CAIRN, "trace", "messages", self.export("failed")[:-5], "--json"], check=True, stdout=subprocess.PIPE)
        events = {(event["rank"], event["id"]): event for event in json.loads(listed.stdout)}
        told = self.tell("""Array.from({length: page.model.count}, (_, at) => {
            const {model} = page, name = value => model.names[value];
            return [model.ranks[model.rank[at]].number, model.id[at], model.time[at], name(model.actor[at]), model.kinds[model.kind[at]],
                    name(model.name[at]), model.peer[at], name(model.phase[at]), name(model.detail[at]), model.texts[model.text[at]],
                    model.bytes[at], model.time[at] - model.begin[at], model.hasFailed(at)];
        })""")
        self.assertEqual(len(told), len(events))
        for rank, number, time, actor, kind, name, peer, phase, detail, text, size, took, failed in told:
            event = events[(rank, number)]
            self.assertAlmostEqual(time, event["seconds"], places=8)
            self.assertAlmostEqual(took, event.get("duration_seconds", 0), places=8)
            self.assertEqual([actor, kind, name, peer, phase, detail, text, size, failed],
                             [event["actor"], event["kind"], event["name"], event.get("peer", -1), event.get("phase", ""),
                              event.get("code", event.get("committed", "")), event.get("text", ""), event.get("bytes", 0),
                              not event.get("ok", True)])

    def test_keys_lead_everywhere(self):
        self.open("failed")
        origin = self.tell("page.selected")
        self.browser.press("v")
        self.assertRegex(self.text("#event_section h2"), "supervisor sent PhaseFailed")
        self.browser.press("m")
        self.assertRegex(self.text("#event_section h2"), "supervisor handled PhaseFailed")
        self.assertRegex(self.text("#announcer"), "rank 0: supervisor handled PhaseFailed")
        self.browser.press("c")
        self.browser.press("c")
        self.assertEqual(self.tell("page.selected"), origin)
        self.browser.press("ArrowUp")
        lane = self.tell("page.lanes.laneOf[page.selected]")
        self.assertNotEqual(lane, self.tell(f"page.lanes.laneOf[{origin}]"))
        before = self.tell("page.model.begin[page.selected]")
        self.browser.press("ArrowRight")
        self.assertEqual(self.tell("page.lanes.laneOf[page.selected]"), lane)
        self.assertGreaterEqual(self.tell("page.model.begin[page.selected]"), before)
        length = "page.view.end - page.view.begin"
        before = self.tell(length)
        self.browser.press("w")
        self.assertAlmostEqual(self.tell(length) / before, 0.6, places=3)
        begin = self.tell("page.view.begin")
        self.browser.press("d")
        self.assertGreater(self.tell("page.view.begin"), begin)
        self.browser.press("0")
        self.check_all_is_in_view()
        self.browser.press("?")
        self.assertTrue(self.tell("document.getElementById('help').open"))
        self.browser.press("Escape")
        self.browser.press("f")
        self.assertEqual(self.tell("page.selected"), origin)
        self.browser.press("Escape")
        self.assertEqual(self.tell("page.selected"), -1)
        self.assertTrue(self.tell("document.getElementById('event_section').hidden"))

    def test_dragging_moves_and_the_wheel_zooms(self):
        self.open("failed")
        self.tell("page.fit(); page.zoom(0.2)")
        begin, end = self.tell("[page.view.begin, page.view.end]")
        for kind, x in (("mousePressed", 700), ("mouseMoved", 600), ("mouseReleased", 600)):
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=400, button="left", buttons=1, clickCount=1)
        self.browser.drawn()
        moved = self.tell("page.view.begin") - begin
        self.assertAlmostEqual(moved / (end - begin), 100 / self.tell("page.view.width - GUTTER"), places=3)
        self.browser.call("Input.dispatchMouseEvent", type="mouseWheel", x=600, y=400, deltaX=0, deltaY=-100, modifiers=2)
        self.browser.drawn()
        self.assertLess(self.tell("page.view.end - page.view.begin"), end - begin)

    def test_a_rank_opens_and_closes_by_its_name(self):
        self.open("failed")
        box = self.tell("(({left, top}) => [left, top])(page.overlay.getBoundingClientRect())")
        self.tell("page.lanes.setOpen([]); page.view.scroll = 0; page.change()")
        self.browser.drawn()
        y = box[1] + self.tell("AXIS_HEIGHT + page.lanes.ranks[2].top + 10")
        self.browser.click(box[0] + 40, y)
        self.assertEqual(self.tell("[...page.lanes.open]"), [2])
        self.browser.click(box[0] + 40, y)
        self.assertEqual(self.tell("[...page.lanes.open]"), [])

    def test_light_and_dark_follow_the_system(self):
        surfaces = []
        for scheme in ("light", "dark"):
            self.browser.prefer(scheme)
            self.open("failed")
            surfaces += self.pixels(self.tell("[page.view.width - 3, page.view.height - 3]"))
        self.browser.prefer("light")  # while it is open
        self.assertEqual(self.tell("page.painter.theme.surface"), "#ffffff")
        self.assertGreater(min(surfaces[0]), 200)
        self.assertLess(max(surfaces[1]), 60)

    def test_it_is_said_without_scripts_too(self):
        with open(self.export("failed"), encoding="utf-8") as file:
            page = file.read()
        still = re.search(r"<noscript>(.*?)</noscript>", page, re.DOTALL).group(1)
        self.assertRegex(still, r"rank 1 [(]process [0-9]+ on .*[)] raised in write")


class Job(PageTest):
    def test_all_saves_are_listed_and_slow_ones_are_marked(self):
        self.open("job", messages=SAVES)
        listed = self.tell("[...document.querySelectorAll('.attempts a')].map(it => it.innerText)")
        self.assertEqual(len(listed), SAVES)
        self.assertEqual([place for place, text in enumerate(listed) if "slow" in text], [SLOW])
        self.assertIn("6.011 s", listed[SLOW])
        self.assertEqual(self.text("#job_section h2"), f"{SAVES} saves slow")
        self.assertEqual(self.tell("document.querySelector('#job_section h2 a').hash"), self.tell(f"page.job.attempts[{SLOW}].link"))
        self.assertEqual(self.text("#badge"), "succeeded")

    def test_a_save_is_shown_when_it_is_chosen(self):
        self.open_slow()
        self.assertEqual(self.text("#badge"), "succeeded, slow")
        self.assertIn("succeeded in 6.01 s", self.text("#summary_section"))
        self.assertEqual(self.tell("document.querySelector('.attempts [aria-current]').innerText.includes('slow')"), True)
        for key, place in (("[", 0), ("[", 0), ("]", 1), ("]", 2)):
            self.browser.press(key)
            self.assertEqual(self.tell("page.place"), place)
        self.assertEqual(self.text("#badge"), "succeeded")
        self.assertEqual(self.find("write_data kind:ended"), RANKS)

    def test_a_slow_save_opens_at_its_longest_step(self):
        self.open_slow()
        self.assertEqual(self.tell("[page.model.describe(page.selected), page.model.rank[page.selected]]"), ["storage ended write_data", RANKS - 1])
        self.assertIn("write_data, 6.000 s", self.text("#summary_section"))
        x, y = self.tell("""[Math.round(page.painter.x(page.model.data.longest.begin)),
                             Math.round(page.lanes.ranks.at(-1).top - page.view.scroll + AXIS_HEIGHT + 20)]""")
        self.assertIn(self.tell("page.painter.theme.warn.slice(1).match(/../g).map(it => parseInt(it, 16))"),
                      self.pixels(*([x + i, y] for i in (-1, 0, 1))))

    def test_20_ms_are_seen_beside_6_s(self):
        self.open_slow()
        share = "(page.painter.x(0.01) - page.painter.x(0)) / (page.view.width - GUTTER)"
        self.assertGreater(self.tell(share), 0.3)
        self.assertEqual(self.text("#fold"), "Unfold gaps")
        places = self.tell("Array.from({length: 60}, (_, i) => i / 10).map(time => [time, page.times.timeOf(page.times.placeOf(time)), page.times.placeOf(time)])")
        for time, back, _ in places:
            self.assertAlmostEqual(time, back)
        self.assertEqual([place for *_, place in places], sorted(place for *_, place in places))
        self.assertEqual(self.tell("page.painter.ticks().times.filter(time => page.times.folds.some(({from, to}) => time > from && time < to))"), [])
        self.browser.press("g")
        self.assertLess(self.tell(share), 0.01)
        self.assertEqual(self.text("#fold"), "Fold gaps")
        self.check_all_is_in_view()

    def test_evenly_filled_time_is_not_folded(self):
        self.open("good")
        self.assertEqual(self.tell("page.times.found"), [])
        self.assertTrue(self.tell("document.getElementById('fold').hidden"))

    def test_a_link_opens_the_page_at_its_event(self):
        self.open_slow()
        event = self.tell("page.model.search('Written kind:sent rank:2')[0]")
        self.tell(f"page.select({event})")
        link = self.tell("document.querySelector('#event_section a').hash")
        self.assertEqual(link, self.tell("location.hash"))
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.open(self.export("job", messages=SAVES) + link)
        self.assertEqual(self.tell("[page.place, page.selected]"), [SLOW, event])
        self.tell("location.hash = page.job.attempts[0].link + '/1/3'")
        self.browser.drawn()
        self.assertEqual(self.tell("[page.place, page.model.rank[page.selected], page.model.id[page.selected]]"), [0, 1, 3])

    def test_a_link_to_what_is_not_there_opens_the_page_as_usual(self):
        self.open("job", messages=SAVES)
        for link in ("#nothing", "#nothing/1/1", "#/x/y", "#" + self.tell("page.attempt.link") + "/99/99"):
            self.browser.call("Page.navigate", url="about:blank")
            self.browser.open(self.export("job", messages=SAVES) + link)
            self.assertEqual(self.tell("[page.place, page.selected]"), [SAVES - 1, -1])

    def test_a_save_without_its_events_is_listed(self):
        with open(self.export("job", messages=SAVES), encoding="utf-8") as file:
            page = file.read()
        large = os.path.join(self.root, "large.html")
        with open(large, "w", encoding="utf-8") as file:
            file.write(page.replace('"exported":true', '"exported":false', 1))
        self.browser.open(large)
        self.assertEqual(self.tell("document.querySelectorAll('.attempts li').length"), SAVES)
        self.assertIn("cairn trace export --attempt", self.tell("document.querySelector('.attempts li > span').title"))
        self.tell("location.hash = page.job.attempts[1].link")
        self.browser.drawn()
        self.browser.press("[")
        self.assertEqual(self.tell("page.place"), 1)

    def test_one_chosen_save_is_exported_alone(self):
        path = os.path.join(self.root, "alone.html")
        traces = self.export("job", messages=SAVES)[:-5]
        subprocess.run([CAIRN, "trace", "export", traces, "--attempt", "save:2", "--to", "html", "-o", path], check=True)
        self.browser.open(path)
        self.assertEqual(self.tell("page.job.attempts.map(it => it.attempt)"), [2])
        self.assertTrue(self.tell("document.getElementById('job_section').hidden"))

    def test_many_ranks_are_in_view_at_once(self):
        self.open_slow(ranks=32)
        self.assertLess(self.tell("page.lanes.height"), self.tell("page.view.height - AXIS_HEIGHT"))

    def test_nothing_crosses_a_label(self):
        for show in (lambda: self.open("failed"), lambda: self.open_slow(ranks=32)):
            show()
            self.browser.press("0")
            # Between a label's letters there is nothing but the colour of its bar, and what lies between the two colours.
            checked = self.tell("""(() => {
                const {canvas, labels} = page.painter, copy = document.createElement('canvas');
                [copy.width, copy.height] = [canvas.width, canvas.height];
                const c = copy.getContext('2d', {willReadFrequently: true});
                c.drawImage(canvas, 0, 0);
                const rgb = colour => colour.slice(1).match(/../g).map(it => parseInt(it, 16));
                const isBetween = (one, from, to) => {
                    const share = one.reduce((sum, it, i) => sum + (it - from[i]) * (to[i] - from[i]), 0) / from.reduce((sum, it, i) => sum + (to[i] - it) ** 2, 0);
                    return share > -0.02 && one.every((it, i) => Math.abs(from[i] + share * (to[i] - from[i]) - it) < 12);
                };
                const inView = labels.filter(({x, y}) => x > GUTTER && y > AXIS_HEIGHT + 10 && y < canvas.height - 10);
                return inView.map(({text, x, y, fill, colour}) => {
                    const {data} = c.getImageData(x - 2, Math.round(y) - 3, page.painter.width(text) + 3, 6);
                    const pixels = Array.from({length: data.length / 4}, (_, i) => Array.from(data.slice(4 * i, 4 * i + 3)));
                    return [text, pixels.filter(it => !isBetween(it, rgb(fill), rgb(colour))).length];
                });
            })()""")
            self.assertGreater(len(checked), 5)
            self.assertEqual([it for it in checked if it[1] != 0], [])


# All texts and bars that are drawn, with their places.
RECORD = """(() => {
    const {painter} = page, {context: c} = painter, texts = [], bars = [], {fillText} = c;
    let isAxis = false;
    c.fillText = function(text, x, y) {
        // What is scrolled is cut at the edges.
        if (text !== '' && (isAxis || (y > AXIS_HEIGHT + 6 && y < page.view.height - 6))) texts.push([text, x, y, c.measureText(text).width]);
        fillText.call(c, text, x, y);
    };
    painter.axis = function() { isAxis = true; Painter.prototype.axis.call(painter); isAxis = false; };
    painter.bar = function(x, y, width, height, ...rest) { bars.push([x, y, width, height]); Painter.prototype.bar.call(painter, x, y, width, height, ...rest); };
    painter.draw();
    delete c.fillText;
    delete painter.bar;
    delete painter.axis;
    const rows = [];
    painter.eachVisibleRank((rank, place, top) => rows.push([page.model.ranks[place].number, top, top + rank.line.height]));
    return {texts, bars, rows, labels: painter.labels.length, width: page.view.width};
})()"""
# Parts of the page that lie on each other, or are cut off, or reach out of the window.
MISPLACED = """(() => {
    const box = it => it.getBoundingClientRect(), name = it => it.id || it.className || it.tagName, wrong = [];
    const parts = [...document.querySelectorAll('header > *, header button')].filter(it => box(it).width > 0);
    for (const one of parts)
        for (const other of parts) {
            const a = box(one), b = box(other);
            if (one !== other && !one.contains(other) && !other.contains(one) && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
                wrong.push(name(one) + ' lies on ' + name(other));
        }
    for (const it of document.querySelectorAll('header *, #panel *'))
        if (box(it).right > innerWidth || box(it).left < 0) wrong.push(name(it) + ' reaches out of the window');
    for (const it of document.querySelectorAll('h1, #subtitle, #badge, button, .fields dd, .lines span, .attempts > *'))
        if (it.scrollWidth > it.clientWidth + 1 && it.clientWidth > 0) wrong.push(name(it) + ' is cut off');
    const {scrollWidth, scrollHeight} = document.documentElement;
    if (scrollWidth > innerWidth || scrollHeight > innerHeight) wrong.push('the page is larger than the window');
    return wrong;
})()"""


class Looks(PageTest):
    """In windows of two sizes, light and dark. CAIRN_SCREENSHOTS names a directory for pictures of what was checked."""
    pictures = os.environ.get("CAIRN_SCREENSHOTS")

    def check_drawn(self, drawn):
        for i, (text, x, y, width) in enumerate(drawn["texts"]):
            self.assertTrue(0 <= x and x + width <= drawn["width"] + 0.5, f"'{text}' is cut off at {x:.0f}")
            for other, other_x, other_y, other_width in drawn["texts"][:i]:
                if abs(y - other_y) < 9 and x < other_x + other_width and other_x < x + width:
                    self.fail(f"'{text}' and '{other}' lie on each other at {x:.0f}, {y:.0f}")
        self.assertGreater(drawn["labels"], 0)
        for rank, top, bottom in drawn["rows"]:
            of_rank = [width for _, y, width, _ in drawn["bars"] if top <= y < bottom]
            self.assertTrue(any(width >= 1.5 for width in of_rank), f"rank {rank} has no bar")

    def check(self, ranks):
        for mode in ("failed", "job"):
            for width, height in ((800, 600), (1400, 900)):
                self.browser.resize(width, height)
                for scheme in ("light", "dark"):
                    self.browser.prefer(scheme)
                    if mode == "failed":
                        self.open("failed", ranks=ranks, messages=20)
                    else:
                        self.open_slow(ranks=ranks)
                    if self.pictures:
                        self.browser.screenshot(os.path.join(self.pictures, f"{mode}-{ranks}-{width}-{scheme}.png"))
                    with self.subTest(mode=mode, size=(width, height), scheme=scheme):
                        self.check_drawn(self.tell(RECORD))
                        self.assertEqual(self.tell(MISPLACED), [])
                        self.assertEqual(self.tell("[...document.querySelectorAll('.attempts .bar')].filter(it => it.offsetParent && it.offsetWidth < 2).length"), 0)

    def test_nothing_is_cut_off_or_covered_with_4_ranks(self):
        self.check(4)

    def test_nothing_is_cut_off_or_covered_with_32_ranks(self):
        self.check(32)

    def test_nothing_is_cut_off_or_covered_with_128_ranks(self):
        self.check(128)


class OtherTraces(PageTest):
    def test_a_late_message_tells_whether_sender_wire_or_receiver_held_it_up(self):
        self.open("late", ranks=2, messages=0)
        for name, place in (("LocalSavePlan", "Sender"), ("GlobalSavePlan", "Wire"), ("Written", "Receiver")):
            for kind in ("sent", "handled"):
                self.assertEqual(self.find(f"{name} kind:{kind}"), 1)
                told = self.tell("[...document.querySelectorAll('.fields dt')].map(it => [it.innerText, it.nextSibling.innerText])")
                late = [name for name, text in told if name in ("Sender", "Wire", "Receiver") and re.search(r"\b(800\.\d|799\.\d) ms", text)]
                self.assertEqual(late, [place], told)

    def test_a_good_save_is_shown_as_a_whole(self):
        self.open("good")
        self.assertEqual(self.text("#badge"), "succeeded")
        self.check_all_is_in_view()
        self.assertTrue(self.tell("document.getElementById('to_failure').hidden"))
        self.assertEqual(self.tell("page.selected"), -1)
        self.browser.press("f")  # there is none to go to
        self.assertGreater(self.colours(), 20)

    def test_a_long_bar_that_begins_in_the_pixel_of_a_short_one_is_drawn(self):
        self.open("good")
        widths = self.tell("""(() => {
            const {painter, view} = page, drawn = [], left = Math.floor(painter.x((view.begin + view.end) / 2));
            const time = x => painter.timeAt(left + x);
            painter.bar = (x, y, width) => drawn.push(width);
            painter.spans({begins: [time(0.1), time(0.4)], ends: [time(0.3), time(200)], events: [0, 0]}, 0, 10, () => 'handler', null);
            delete painter.bar;
            return drawn;
        })()""")
        self.assertEqual([round(width) for width in widths], [200])

    def test_a_trace_that_ends_in_the_middle(self):
        self.open("torn")
        self.assertEqual(self.text("#badge"), "unfinished")
        self.assertIn("write_data", self.text("#summary_section"))
        self.assertGreaterEqual(self.tell("page.selected"), 0)
        self.assertEqual(self.tell("page.lanes.extentOf(page.selected)[1]"), self.tell("page.model.ranks[page.model.rank[page.selected]].end"))

    def test_ranks_whose_traces_are_missing_have_a_row(self):
        self.open("failed", without=(1,))
        self.assertEqual(self.tell("page.model.ranks.map(rank => [rank.number, rank.missing])"),
                         [[0, False], [1, True], [2, False], [3, False]])
        self.assertRegex(self.tell("page.model.describe(page.selected)"), "was told: raised \\(rank 1\\)")
        self.assertIn("Its other end is not in the traces", self.text("#event_section") if self.find("PhaseFailed kind:handled") else "")

    def test_names_and_texts_that_look_like_markup_are_only_texts(self):
        self.open("hostile")
        self.assertNotIn("taken", self.tell("document.title"))
        self.assertEqual(self.tell("document.querySelectorAll('script:not([type])').length"), 7)
        self.assertEqual(self.tell("document.querySelectorAll('#panel img, #panel script').length"), 0)
        self.assertTrue(self.text("#event_section .quote").startswith("</script><script>document.title='taken'</script><!--<script>"))
        self.assertGreater(len(self.text("#event_section .quote")), 1000)
        self.assertEqual(self.find("document.title='taken' kind:sent"), RANKS)
        self.assertIn("</script>", self.text("#event_section h2"))
        self.assertNotIn("taken", self.tell("document.title"))
        # Nothing of it makes the page wider.
        self.assertLessEqual(self.tell("document.documentElement.scrollWidth"), self.tell("innerWidth"))
        self.assertLessEqual(self.tell("document.getElementById('story').scrollWidth"), self.tell("document.getElementById('story').clientWidth"))

    def test_a_trace_without_events_says_so(self):
        with open(self.export("good"), encoding="utf-8") as file:
            page = file.read()
        found = re.search(r'(<script type="application/json" id="attempt_0">)(.*?)(</script>)', page, re.DOTALL)
        data = json.loads(found.group(2))
        data.update(ranks=[{"rank": 0, "missing": True, "events": 0, "host": "", "columns": {}}], phases=[], failures=[], end_event=-1,
                    end="unfinished", longest=None, names=[""], texts=[""])
        empty = os.path.join(self.root, "empty.html")
        with open(empty, "w", encoding="utf-8") as file:
            file.write(page[:found.start(2)] + json.dumps(data) + page[found.end(2):])
        self.browser.open(empty)
        self.assertEqual(self.text("#badge"), "empty")
        for key in ("f", "ArrowRight", "ArrowDown", "Enter", "e", "0", "w"):
            self.browser.press(key)
        self.assertEqual(self.find("anything"), 0)

    def test_one_rank_without_messages(self):
        self.open("failed", ranks=1, messages=0)
        self.assertEqual(self.text("#badge"), "failed")
        self.assertIn("rank 0 raised", self.text("#summary_section"))


class Large(PageTest):
    def test_64_ranks_of_10000_messages_are_loaded_and_drawn_in_bounded_memory(self):
        path = self.export("failed", ranks=LARGE_RANKS, messages=LARGE_MESSAGES)
        self.assertLess(os.path.getsize(path), 64 << 20)
        self.open("failed", ranks=LARGE_RANKS, messages=LARGE_MESSAGES)
        # All of what was sent to others, and what it takes to get there and to end.
        self.assertGreater(self.tell("page.painter.arrows.remote.length"), LARGE_RANKS * LARGE_MESSAGES)
        self.assertGreater(self.tell("page.model.count"), 2 * LARGE_RANKS * LARGE_MESSAGES)
        self.assertEqual(self.tell("page.model.describe(page.selected)"), "storage ended write_data")
        self.assertGreater(self.colours(), 20)
        # However much is in view, what is drawn has a bound: so has the time it takes.
        for _ in range(2):
            self.tell("page.toggleAll()")
            self.browser.press("0")
            self.assertLessEqual(self.tell("page.painter.arrows.drawn.length"), self.tell("ARROWS_DRAWN + LOCAL_ARROWS_DRAWN"))
            self.assertIn("zoom in", self.text("#note"))
        self.assertEqual(self.find("PhaseFailed kind:handled"), 1)
        self.assertRegex(self.text("#event_section h2"), "handled PhaseFailed from rank 1")
        self.assertGreater(self.find("SignOfLife"), LARGE_RANKS * LARGE_MESSAGES)
        self.browser.press("Enter")
        self.browser.call("HeapProfiler.collectGarbage")
        used = self.browser.call("Runtime.getHeapUsage")
        held = used["usedSize"] + used.get("backingStorageSize", 0)
        self.assertLess(held, 600 << 20)


if __name__ == "__main__":
    if find_chromium() is None:
        print("SKIPPED: there is no chromium here (on Debian: apt-get install chromium-headless-shell); CAIRN_CHROMIUM names one elsewhere")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
