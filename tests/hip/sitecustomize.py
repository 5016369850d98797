"""Python runs this when it starts with this folder on its path: scripts of the tests get the stand-in by it."""

import os

if os.environ.get("TEST_STAND_IN"):
    import standin

    STAND_IN = standin.StandIn()
    STAND_IN.install(standin.default_folder())
