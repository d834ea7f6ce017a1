"""An installation to look around in: it stays until the run is interrupted."""

import signal

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import Stage


def _hold(stage: Stage) -> None:
    stage.progress.say(f"look around with\n  {stage.provider.way_in()}\nCtrl-C ends it")
    signal.pause()


CHAPTER = Chapter(
    "hold",
    "keep what the chapters before have left until Ctrl-C; run only when it is named",
    (Step("everything stays as it is", _hold),),
    on_request=True,
)
