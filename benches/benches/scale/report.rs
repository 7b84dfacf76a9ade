//! The report: tables for people, target lines and figures for tools.

use redrive_benches::conditions::Conditions;
use redrive_benches::measure::median;
use redrive_benches::target::{Goal, Target};
use serde_json::{Value, json};

use crate::run::{DUE, Run};

pub(crate) fn report(run: &Run) {
    let Run { options, conditions, load, took, .. } = run;
    let [before, after] = load.map(|load| load.map_or_else(|| "-".to_owned(), |load| format!("{load:.1}")));
    let sizes = options.sizes();
    println!("A file with many events, 256 bytes each. {conditions}, load {before} before, {after} after.");
    println!("{} rounds, {:.0} s in all; medians, least–most.\n", options.rounds, took.as_secs_f64());
    line("", "median", "least–most");
    for (at, waiting) in sizes.into_iter().enumerate() {
        row(&format!("life cycles a second, {waiting} wait"), &lives(run, at), 0);
    }
    row("opened after a clean stop, s", &of(run.reopened.iter().map(|it| &it[0]), "handled_s"), 2);
    row("opened after a kill, s", &of(run.reopened.iter().map(|it| &it[1]), "handled_s"), 2);
    let (rate, _) = DUE;
    for (name, field) in [("p50", "p50_ms"), ("p99", "p99_ms"), ("most", "most_ms")] {
        row(&format!("late at {rate} due a second, {name}, ms"), &of(&run.due, field), 1);
    }
    row("a sync of this disk meanwhile, p50, ms", &of(&run.due, "sync_p50_ms"), 1);
    row("a sync of this disk meanwhile, most, ms", &of(&run.due, "sync_most_ms"), 1);
    row(&format!("memory with {} that wait, MB", sizes[2]), &memory(run), 0);
    println!();
    line(&format!("with {} dead letters", options.letters()), "median", "least–most");
    for kind in ["groups_ms", "lists_ms"] {
        for (name, _) in questions(run, kind) {
            row(&format!("{name}, ms"), &answers(run, kind, &name), 1);
        }
    }
    let names = [
        ("published a second, handlers running", "published_a_second"),
        ("put back a second, handlers running", "taken_a_second"),
        ("published and done a second", "published_done_a_second"),
        ("put back and done a second", "taken_done_a_second"),
        ("memory meanwhile, MB", "most_mb"),
    ];
    for (name, field) in names {
        row(name, &of([&run.put_back], field), 0);
    }
    println!();
    for target in targets(run) {
        println!("{target}");
    }
    println!("figures {}", as_json(run));
}

fn line(what: &str, value: &str, span: &str) {
    println!("{what:<46}{value:>11}{span:>19}");
}

fn row(what: &str, values: &[f64], digits: usize) {
    let (least, most) = ends(values);
    let value = format!("{:.digits$}", median(values.iter().copied()));
    line(what, &value, &format!("{least:.digits$}–{most:.digits$}"));
}

fn ends(values: &[f64]) -> (f64, f64) {
    let fold = |(least, most), value: &f64| (f64::min(least, *value), f64::max(most, *value));
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), fold)
}

/// One figure of several answers.
fn of<'a>(answers: impl IntoIterator<Item = &'a Value>, field: &str) -> Vec<f64> {
    answers.into_iter().map(|answer| answer[field].as_f64().unwrap_or(f64::NAN)).collect()
}

fn lives(run: &Run, size: usize) -> Vec<f64> {
    of(run.life.iter().map(|round| &round[size]), "a_second")
}

/// The most memory of every process that ran an engine over the largest file.
fn memory(run: &Run) -> Vec<f64> {
    let lives = run.life.iter().map(|round| &round[2]);
    of(lives.chain(run.reopened.iter().flatten()).chain(&run.due), "most_mb")
}

fn questions(run: &Run, kind: &str) -> serde_json::Map<String, Value> {
    run.pages.first().and_then(|page| page[kind].as_object().cloned()).unwrap_or_default()
}

fn answers(run: &Run, kind: &str, name: &str) -> Vec<f64> {
    of(run.pages.iter().map(|page| &page[kind]), name)
}

/// The slowest question of a kind, each as its median.
fn slowest(run: &Run, kind: &str) -> f64 {
    let medians =
        questions(run, kind).into_iter().map(|(name, _)| median(answers(run, kind, &name).into_iter()));
    medians.fold(f64::NAN, f64::max)
}

fn targets(run: &Run) -> Vec<Target> {
    // Round by round, because a shared disk's weather changes.
    let of_few = |size: usize| {
        let (few, more) = (lives(run, 0), lives(run, size));
        median(few.into_iter().zip(more).map(|(few, more)| more / few))
    };
    let opened = run.reopened.iter().map(|it| of(it, "handled_s").into_iter().fold(f64::NAN, f64::max));
    let put_back = |field: &str| run.put_back[field].as_f64().unwrap_or(f64::NAN);
    let of_publish = put_back("taken_a_second") / put_back("published_a_second");
    let of_publish_done = put_back("taken_done_a_second") / put_back("published_done_a_second");
    let p99 = median(of(&run.due, "p99_ms").into_iter());
    let most_mb = memory(run).into_iter().fold(f64::NAN, f64::max);
    [
        ("memory_mb", most_mb, Goal::AtMost(300.0), 0),
        ("reopening_s", median(opened), Goal::AtMost(3.0), 1),
        ("due_late_p99_ms", p99, Goal::AtMost(100.0), 1),
        ("groups_ms", slowest(run, "groups_ms"), Goal::AtMost(50.0), 1),
        ("filtered_list_ms", slowest(run, "lists_ms"), Goal::AtMost(50.0), 1),
        ("redrive_of_publish", of_publish, Goal::AtLeast(0.5), 2),
        ("redrive_of_publish_until_done", of_publish_done, Goal::AtLeast(0.5), 2),
        ("life_cycles_many_of_few", of_few(1), Goal::AtLeast(0.8), 2),
        ("life_cycles_all_of_few", of_few(2), Goal::AtLeast(0.8), 2),
    ]
    .map(|(name, value, goal, digits)| Target { name, value, goal, digits })
    .into()
}

fn as_json(run: &Run) -> Value {
    let Conditions { cpu, cores, rustc } = &run.conditions;
    json!({
        "cpu": cpu, "cores": cores, "rustc": rustc, "load": run.load, "rounds": run.options.rounds,
        "waiting": run.options.sizes(), "letters": run.options.letters(),
        "life": run.life, "reopened": run.reopened, "due": run.due, "pages": run.pages,
        "put_back": run.put_back,
    })
}
