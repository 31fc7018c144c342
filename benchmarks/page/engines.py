"""The sections about several engines: how requests are spread in the simulation, and what a stream feels of a death."""

import statistics

from benchmarks.page.text import Result, make_table


def router_table(router: Result) -> str:
    """The simulated policies, by trace and number of engines."""
    outcomes = router["results"]["outcomes"]
    rows = [
        (
            f"{one['trace']}, {one['num_engines']}",
            one["policy"],
            f"{one['hit_rate']:.1%}",
            f"{one['imbalance']:.2f}",
            f"{one['ttft_mean_s']:.2f}",
            f"{one['ttft_p99_s']:.2f}",
        )
        for one in outcomes
    ]
    settings = router["results"]["settings"]
    machine = settings["machine"]
    intro = (
        f"Simulated: engines that compute {machine['prefill_rate']:,.0f} prompt tokens a second and cache "
        f"{machine['num_blocks']:,} blocks of 512; they would be busy for {settings['busy']:.0%} of the time "
        "if nothing were cached. The imbalance is what the engine with most work has computed, divided by the mean. "
        "Times to the first token in seconds.\n\n"
    )
    heads = ("trace, engines", "policy", "cached", "imbalance", "mean TTFT", "p99 TTFT")
    return intro + make_table(heads, rows)


def engine_death_text(recovery: Result) -> str:
    """The longest pauses of single streams."""
    kills = recovery["results"]["kills"]
    pauses_s = sorted(one["stream_pause_s"] for one in kills)
    back_s = sorted(one["ready_s"] for one in kills)
    ordered = [one["stream_pause_s"] for one in recovery["results"]["replacements"]]
    return (
        f"Two engines on the cores of this CPU, {recovery['results']['streams']} streams, {len(kills)} times `kill -9` "
        f"of one: the longest pause of any stream was {pauses_s[0]:.2f} to {pauses_s[-1]:.2f} s (median "
        f"{statistics.median(pauses_s):.2f}), and the engine served again after {back_s[0]:.1f} to {back_s[-1]:.1f} s. "
        f"Where one was replaced by a command it was {max(ordered):.2f} s at most. Other programs used the cores too "
        f"(load {recovery['machine']['load_1min']:.1f}).\n\n"
    )


def remote_cost_table(cost: Result) -> str:
    """A row for each number of streams and way to the engine."""
    results = cost["results"]
    rows = [
        (
            one["num_streams"],
            one["side"],
            f"{one['cpu_us_more']:.0f}",
            f"{one['latency_ms_more']:.2f}",
            f"{one['output_tokens_per_s']:,.0f}",
        )
        for one in results["sides"]
    ]
    intro = (
        f"Steps only wait, {results['step_ms']:g} ms each; {results['rounds']} turns of {results['seconds']:g} s for "
        "each row, by turns with the others. CPU time is that of proxy and joiner together; at one stream "
        "each token is a frame of its own. The time is the medians' difference to ipc, from the scheduler's token to "
        "the client. All ran on one machine, so no network is in it; where the joiner's clock is another one, as "
        "between machines, frames are decoded for their stamps. Other programs used the cores too "
        f"(load {cost['machine']['load_1min']:.1f}).\n\n"
    )
    heads = ("streams", "way to the engine", "CPU µs a token more", "ms a frame more", "tokens/s")
    return intro + make_table(heads, rows)
