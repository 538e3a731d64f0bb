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
    use shared_abi::planted::Bug;
    use sim::run::{Runner, campaign, hunt, name_seed_in_panics};
    use sim::search::{scopes, search};

    /// Seeds that the search for a planted bug may use.
    const HUNT_SEEDS: u64 = 3_000;

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
        /// What belongs to an ordinary test: 1,100 seeds, --bugs and --exhaustive.
        #[arg(long)]
        all: bool,
        /// Find every planted bug.
        #[arg(long)]
        bugs: bool,
        /// Try every interleaving of small machines.
        #[arg(long)]
        exhaustive: bool,
        /// Preemptions in each interleaving, with --exhaustive; else each machine's own number.
        #[arg(long)]
        preemptions: Option<u32>,
        /// Plant this bug.
        #[arg(long)]
        plant: Option<String>,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
    }

    pub fn main() -> ExitCode {
        let options = Options::parse();
        name_seed_in_panics();
        if let Some(name) = &options.plant {
            let Some(&bug) = Bug::ALL.iter().find(|bug| format!("{bug:?}") == *name) else {
                eprintln!("no such bug; there are {:?}", Bug::ALL);
                return ExitCode::from(2);
            };
            Bug::switch(Some(bug));
        }
        let passed = if options.all {
            all()
        } else if options.bugs {
            bugs(options.steps)
        } else if options.exhaustive {
            exhaustive(options.preemptions)
        } else if options.trace || options.minimise {
            one(&options)
        } else {
            seeds(&options)
        };
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Searches on one thread while another runs seeds and looks for the planted bugs.
    fn all() -> bool {
        std::thread::scope(|scope| {
            let searched = scope.spawn(|| exhaustive(None));
            let ordinary = Options::parse_from(["sim", "--seeds", "1100", "--threads", "1"]);
            let passed = seeds(&ordinary) & bugs(ordinary.steps);
            searched.join().is_ok_and(|searched| searched && passed)
        })
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

    fn seeds(options: &Options) -> bool {
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
        result.violations.is_empty()
    }

    fn exhaustive(preemptions: Option<u32>) -> bool {
        let mut passed = true;
        for scope in scopes(false) {
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
            if let Some(violation) = result.violation {
                println!("after step {}: {}", violation.step, violation.what);
                passed = false;
            }
        }
        passed
    }

    fn bugs(steps: u64) -> bool {
        println!(
            "{:<28}{:>6}{:>10}{:>12}  found as",
            "planted bug", "seed", "at step", "all steps"
        );
        let mut all_found = true;
        for &bug in Bug::ALL {
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
}
