"""Progress: stages of stages, watchers that stop the work, and the bar."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from whymatch import progress


def test_nobody_needs_to_listen():
    with progress.stage(0.0, 1.0):
        progress.report(0.5, "working")


def test_stages_of_stages_cover_one_whole():
    reports = []
    with progress.watching(lambda *report: reports.append(report)):
        with progress.stage(0.0, 0.4, "probing"):
            progress.report(0.5)
        for name, part in progress.stages(["short", "long"], weights=[1, 3], doing="deriving"):
            with progress.stage(0.4, 1.0), part:
                progress.report(0.0)
                progress.report(1.0, name)
    assert [doing for _, doing in reports] == ["probing", "deriving", "short", "deriving", "long"]
    assert [done for done, _ in reports] == pytest.approx([0.2, 0.4, 0.55, 0.55, 1.0])


def test_what_is_done_never_falls():
    done = []
    with progress.watching(lambda fraction, _: done.append(fraction)):
        for fraction in (0.0, 0.6, 0.2, 0.8):
            progress.report(fraction)
    assert done == [0.0, 0.6, 0.6, 0.8]


def test_a_watcher_inside_another_does_not_hide_from_it():
    outer, inner = [], []
    with progress.watching(lambda done, _: outer.append(done)), progress.stage(0.5, 1.0):
        with progress.watching(lambda done, _: inner.append(done)):
            progress.report(0.5)
        progress.report(1.0)
    assert inner == [0.5]
    assert outer == [0.75, 1.0]


def test_an_exception_of_the_watcher_stops_the_work_and_leaves_nothing_behind():
    def stop(_done, _doing):
        raise InterruptedError

    with pytest.raises(InterruptedError), progress.watching(stop), progress.stage(0.0, 0.5):
        progress.report(0.1)
    progress.report(0.2)  # nobody watches any more


def test_threads_do_not_see_each_others_watchers():
    done = []
    with progress.watching(lambda fraction, _: done.append(fraction)):
        thread = threading.Thread(target=progress.report, args=(0.5,))
        thread.start()
        thread.join()
    assert done == []


def test_a_bar_appears_with_its_first_update_on_standard_error(capsys):
    with progress.bar("rows", 4):
        pass
    with progress.bar("rows", 4, enabled=False) as rows:
        rows.update(4)
    assert capsys.readouterr() == ("", "")
    with progress.bar("rows") as rows:
        rows.update(1, total=4)
        rows.update(4)
    out, err = capsys.readouterr()
    assert out == ""
    assert "rows" in err
    assert "4/4" in err


def test_track_shows_what_is_done(capsys):
    assert list(progress.track("abc", "letters[/x]", 3)) == ["a", "b", "c"]  # brackets are no markup
    err = capsys.readouterr().err
    assert "letters[/x]" in err
    assert "3/3" in err


def test_rich_is_imported_only_for_a_bar():
    script = "import sys, whymatch.progress as p; p.report(0.5); list(p.track('ab', 'x', enabled=False)); "
    script += "sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
