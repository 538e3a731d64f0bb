// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The simulator's command line.

#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim, so nothing can be preempted: use `cargo xtask sim`");
    std::process::exit(2);
}

#[cfg(sim)]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(sim)]
mod cli {
    use std::process::ExitCode;
    use std::time::Instant;

    use clap::Parser;
    use sim::growth::{OPERATIONS, SIZES, measure};
    use sim::guided::guided;
    use sim::planted::Bug;
    use sim::run::{Runner, campaign, hunt, name_seed_in_panics};
    use sim::search::{scopes, search};

    /// Seeds that the search for a planted bug may use.
    const HUNT_SEEDS: u64 = 12_000;

    /// Runs hosts and guests around the real cores and checks every step.
    #[derive(Parser)]
    struct Options {
        /// The first seed, or the only one with --trace or --minimise.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of seeds.
        #[arg(long, default_value_t = 1)]
        seeds: u64,
        /// Steps per seed.
        #[arg(long, default_value_t = 10_000)]
        steps: u64,
        /// Print every step.
        #[arg(long)]
        trace: bool,
        /// Replay a failing seed with as few events as possible, and print it.
        #[arg(long)]
        minimise: bool,
        /// Do everything that belongs to a test, as without any option: seeds, a guided search,
        /// --bugs, --exhaustive and --growth. If the environment has PERFCTR_VOLUME=long, make a
        /// billion steps.
        #[arg(long)]
        all: bool,
        /// Make this many steps in runs that lead to something new.
        #[arg(long)]
        guided: Option<u64>,
        /// Let --guided begin every run anew, for comparison.
        #[arg(long)]
        blind: bool,
        /// Count what each operation costs on small and large machines.
        #[arg(long)]
        growth: bool,
        /// Find every planted bug.
        #[arg(long)]
        bugs: bool,
        /// Find only this bug. It may be one that the simulator does not have to find.
        #[arg(long, requires = "bugs")]
        only: Option<String>,
        /// Try every interleaving of small machines.
        #[arg(long)]
        exhaustive: bool,
        /// Preemptions in each interleaving, with --exhaustive. Without this, each machine has its
        /// own number.
        #[arg(long)]
        preemptions: Option<u32>,
        /// Plant this bug.
        #[arg(long, conflicts_with_all = ["all", "bugs", "growth"])]
        plant: Option<String>,
        /// Number of threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
    }

    pub fn main() -> ExitCode {
        let options = Options::parse();
        name_seed_in_panics();
        if let Some(name) = &options.plant {
            let Some(bug) = named(name) else {
                eprintln!("no such bug; there are {:?}", Bug::ALL);
                return ExitCode::from(2);
            };
            Bug::switch(Some(bug));
        }
        let has_options = std::env::args_os().len() > 1;
        let passed = if options.all || !has_options {
            all()
        } else if options.bugs {
            bugs(options.steps, options.only.as_deref())
        } else if let Some(steps) = options.guided {
            search_new(options.seed, steps, options.threads, options.blind).0
        } else if options.growth {
            growth()
        } else if options.exhaustive {
            exhaustive(options.preemptions, false).0
        } else if options.trace || options.minimise {
            one(&options)
        } else {
            seeds(&options).0
        };
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The amount of work: seeds, steps of the guided search, and whether the exhaustive search is
    /// longer.
    struct Volume {
        seeds: u64,
        guided: u64,
        far: bool,
    }

    const USUAL: Volume = Volume { seeds: 500, guided: 2_000_000, far: false };
    const LONG: Volume = Volume { seeds: 80_000, guided: 300_000_000, far: true };

    /// Does everything: searches on one thread while another runs seeds and looks for the planted
    /// bugs.
    fn all() -> bool {
        let long = std::env::var("PERFCTR_VOLUME").is_ok_and(|volume| volume == "long");
        let volume = if long { LONG } else { USUAL };
        let threads = if long { 2 } else { 1 };
        let (passed, steps) = std::thread::scope(|scope| {
            let searched = scope.spawn(|| exhaustive(None, volume.far));
            let ordinary = Options { seeds: volume.seeds, threads, ..Options::parse_from(["sim"]) };
            let (ran, steps) = seeds(&ordinary);
            let (guided, more) = search_new(0, volume.guided, threads, false);
            let found = bugs(ordinary.steps, None);
            let (searched, most) = searched.join().unwrap_or_default();
            (ran && guided && found && searched, steps + more + most)
        });
        let passed = growth() && passed;
        println!("all in all, beside those of planted bugs: {steps}");
        passed
    }

    /// Runs a guided search, and prints its results.
    fn search_new(first: u64, steps: u64, threads: usize, blind: bool) -> (bool, u64) {
        let start = Instant::now();
        let result = guided(first, steps, threads, blind);
        println!(
            "{} steps of {} {} runs, {} readings compared, {} features, {} violations in {:.1} s",
            result.steps,
            result.runs,
            if blind { "blind" } else { "guided" },
            result.readings,
            result.features,
            result.violations.len(),
            start.elapsed().as_secs_f64(),
        );
        for (seed, decisions, violation) in &result.violations {
            println!("machine of seed {seed}, after step {}: {}", violation.step, violation.what);
            let mut runner = Runner::default();
            let found = runner.replay(*seed, decisions, violation.step + 1, false);
            let least = runner.minimise(*seed, &found);
            runner.replay(*seed, &least.decisions, violation.step + 1, true);
        }
        (result.violations.is_empty(), result.steps)
    }

    /// Prints a table of what each operation costs, which has to be equal for all sizes.
    fn growth() -> bool {
        println!(
            "accesses to pages, RDPMC, RDTSC, RDMSR and WRMSR, hypercalls\n\
             domains vCPUs threads  {}",
            OPERATIONS.map(|name| format!("{name:<24}")).concat().trim_end(),
        );
        let mut first = None;
        let mut passed = true;
        for size in SIZES {
            let tallies = match measure(size) {
                Ok(tallies) => tallies,
                Err(what) => {
                    println!("{size:?}: {what}");
                    passed = false;
                    continue;
                }
            };
            let cell = |t: sim::growth::Tally| {
                let cost = [t.accesses, t.rdpmc, t.rdtsc, t.msr, t.hypercalls];
                format!("{:<24}", cost.map(|n| format!("{n:<4}")).concat())
            };
            let row = tallies.map(cell).concat();
            let equal = *first.get_or_insert(tallies) == tallies;
            let verdict = if equal { "" } else { "  NOT EQUAL" };
            let (domains, vcpus, threads) = (size.domains, size.vcpus, size.threads);
            println!("{domains:>7} {vcpus:>5} {threads:>7}  {}{verdict}", row.trim_end());
            passed &= equal;
        }
        passed
    }

    fn one(options: &Options) -> bool {
        let mut runner = Runner::default();
        let mut outcome =
            runner.seed(options.seed, options.steps, options.trace && !options.minimise);
        if options.minimise && outcome.violation.is_some() {
            let all = outcome.decisions.len();
            outcome = runner.minimise(options.seed, &outcome);
            println!("{} of {all} events suffice", outcome.decisions.len());
            outcome = runner.replay(options.seed, &outcome.decisions, options.steps, true);
        }
        match &outcome.violation {
            Some(violation) => println!("after step {}: {}", violation.step, violation.what),
            None => println!("{} steps, no violation", outcome.steps),
        }
        outcome.violation.is_none()
    }

    fn seeds(options: &Options) -> (bool, u64) {
        let start = Instant::now();
        let result = campaign(options.seed, options.seeds, options.steps, options.threads);
        let seconds = start.elapsed().as_secs_f64();
        for (seed, violation) in result.violations.iter().take(10) {
            println!("seed {seed}, after step {}: {}", violation.step, violation.what);
        }
        println!(
            "{} steps of {} seeds, {} readings compared, {} violations; {:.0} steps a second",
            result.steps,
            result.seeds,
            result.readings,
            result.violations.len(),
            result.steps as f64 / seconds,
        );
        (result.violations.is_empty(), result.steps)
    }

    fn exhaustive(preemptions: Option<u32>, far: bool) -> (bool, u64) {
        let (mut passed, mut steps) = (true, 0);
        for scope in scopes(far) {
            let start = Instant::now();
            let result = search(&scope, preemptions);
            println!(
                "{}, {} preemptions: {} states, {} runs, {} steps in {:.1} s",
                scope.name,
                preemptions.unwrap_or(scope.preemptions),
                result.states,
                result.runs,
                result.steps,
                start.elapsed().as_secs_f64(),
            );
            steps += result.steps;
            if let Some(violation) = result.violation {
                println!("after step {}: {}", violation.step, violation.what);
                passed = false;
            }
        }
        (passed, steps)
    }

    fn bugs(steps: u64, only: Option<&str>) -> bool {
        println!(
            "{:<28}{:>6}{:>10}{:>12}  found as",
            "planted bug", "seed", "at step", "all steps"
        );
        let one = only.map(|name| named(name).into_iter().collect::<Vec<Bug>>());
        let wanted = one.as_deref().unwrap_or(Bug::SIMULATED);
        let mut all_found = !wanted.is_empty() && (only.is_some() || is_planted_on_every_thread());
        for &bug in wanted {
            let hunt = hunt(bug, HUNT_SEEDS, steps);
            let name = format!("{bug:?}");
            all_found &= hunt.replays;
            match hunt.found {
                Some((seed, outcome)) => {
                    let (step, what) =
                        outcome.violation.map_or_else(Default::default, |v| (v.step, v.what));
                    let what = if hunt.replays { &what } else { "DOES NOT REPLAY" };
                    println!("{name:<28}{seed:>6}{step:>10}{:>12}  {what}", hunt.steps);
                }
                None => {
                    all_found = false;
                    println!("{name:<28}{:>6}{:>10}{:>12}  NOT FOUND", "-", "-", hunt.steps);
                }
            }
        }
        all_found
    }

    /// Checks that a bug which is switched on for this thread is also on in the threads that run
    /// seeds for it: they find it in exactly the seeds in which this thread finds it.
    fn is_planted_on_every_thread() -> bool {
        const SEEDS: u64 = 8;
        const STEPS: u64 = 10_000;
        let Some(bug) = named("StateReadFromPage") else {
            println!("these sources have no such bug to switch on: use `cargo xtask sim`");
            return false;
        };
        Bug::switch(Some(bug));
        let mut runner = Runner::default();
        let here: Vec<_> = (0..SEEDS)
            .filter_map(|seed| Some((seed, runner.seed(seed, STEPS, false).violation?)))
            .collect();
        let there = campaign(0, SEEDS, STEPS, 2).violations;
        Bug::switch(None);
        if here != there {
            println!("{bug:?} is found as {here:?} on this thread and as {there:?} on two others");
        }
        !here.is_empty() && here == there
    }

    fn named(name: &str) -> Option<Bug> {
        Bug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
    }
}
