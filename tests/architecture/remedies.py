"""Which test runs each command that a remedy names, in a state in which the remedy is given.

A command is known by its verb and options: see `commands.Command.form`.
"""

_REMEDIES = "tests/unit/cli/test_remedies.py::"
_RACK = "tests/hardware/test_campaign_on_rack.py::"
_DEPLOY = "tests/hardware/test_deploy_on_rack.py::"
_PLAYBOOKS = "tests/hardware/test_playbooks.py::"

TESTS = {
    "calibrate --json --on": f"{_REMEDIES}test_a_calibration_is_made_anew",
    "clean": "tests/hardware/test_leased_interfaces.py::"
    "test_a_killed_reaper_is_replaced_and_without_one_clean_returns_interfaces",
    "compare": f"{_REMEDIES}test_two_runs_are_compared",
    "deploy --list": f"{_REMEDIES}test_a_policy_is_deployed_and_what_is_deployed_is_listed",
    "deploy --name": f"{_REMEDIES}test_a_policy_is_deployed_and_what_is_deployed_is_listed",
    "deploy --status -i": f"{_DEPLOY}test_a_model_paces_an_incast_until_it_is_undone",
    "deploy --undo -i": f"{_DEPLOY}test_a_model_paces_an_incast_until_it_is_undone",
    "doctor": f"{_REMEDIES}test_what_only_shows_something_does_so",
    "import --help": f"{_REMEDIES}test_what_only_shows_something_does_so",
    "import flows": "tests/unit/exchange/test_exchange_cli.py::test_flows_of_a_csv_for_a_replay",
    "import omnetpp --list": "tests/unit/exchange/test_exchange_omnetpp.py::"
    "test_the_listing_shows_what_there_is_without_indices",
    "inventory check": "tests/hardware/test_rack.py::"
    "test_the_inventory_check_names_hosts_that_do_not_reach_each_other",
    "inventory list": f"{_REMEDIES}test_what_only_shows_something_does_so",
    "inventory show": f"{_REMEDIES}test_what_only_shows_something_does_so",
    "kernel build": "tests/emulated/test_kernel.py::"
    "test_where_its_wheel_is_installed_nothing_is_built",
    "plan": f"{_REMEDIES}test_a_damaged_file_of_a_trial",
    "provision": f"{_PLAYBOOKS}test_provision_again_verify_and_undo_leave_no_difference",
    "provision --limit": f"{_RACK}"
    "test_nobody_else_gets_the_rack_during_a_run_and_once_stopped_it_restores",
    "provision --undo": f"{_PLAYBOOKS}test_provision_again_verify_and_undo_leave_no_difference",
    "provision --verify": f"{_PLAYBOOKS}test_provision_again_verify_and_undo_leave_no_difference",
    "push": "tests/telemetry/test_server.py::"
    "test_a_run_without_a_server_ends_as_ever_and_is_sent_later",
    "push --again": "tests/telemetry/test_server.py::"
    "test_a_run_that_meets_every_trouble_and_is_killed",
    "rack down": "tests/hardware/test_rack.py::test_up_again_is_the_same_rack_or_refused",
    "rack status": f"{_REMEDIES}test_what_only_shows_something_does_so",
    "rack up": "tests/hardware/test_rack.py::test_up_again_is_the_same_rack_or_refused",
    "replay --in": "tests/unit/cli/test_engine_option.py::"
    "test_another_version_is_refused_by_name_until_the_replay_is_asked_about",
    "replay --on": "tests/emulated/test_replay.py::",
    "report": f"{_REMEDIES}test_a_damaged_file_of_a_trial",
    "restore": f"{_RACK}test_nobody_else_gets_the_rack_during_a_run_and_once_stopped_it_restores",
    "run": f"{_REMEDIES}test_what_has_not_run_is_run",
    "run --on --out": f"{_REMEDIES}test_a_look_at_the_fluid_model_and_then_the_real_run",
    "run --out": "tests/golden/test_runs_0_1.py::",
    "search": f"{_REMEDIES}test_what_was_not_searched_is_searched",
    "train --help": f"{_REMEDIES}test_what_only_shows_something_does_so",
}

# These are held to exist, with their options; to run them is too much for a test.
NOT_RUN = {
    "compile": "a mention: what the verb left is named, nothing is to be run",
    "deploy": "the holder of a lease, not a remedy",
    "deploy --undo": "the holder of a lease, not a remedy",
    "doctor --benchmark": "forwards packets through namespaces of this machine for seconds",
    "kernel build --force": "builds a kernel",
    "report --json": "a mention: what a series of the exporter is, nothing is to be run",
    "kernel build --source": "builds a kernel",
    "rack": "the name of a program, not a remedy",
    "rack image --mirror": "fetches an image from a mirror",
    "restore --forget": "tests/unit/backends/test_safety_identity.py has what it is offered for",
    "train": "trains for hours",
}
