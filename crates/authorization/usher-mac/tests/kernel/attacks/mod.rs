//! Attacks on modules. Each is first shown to work where the module permits it: for another user, for a
//! process with another label, or without the module.

mod by_label;
mod lifetimes;
mod processes;
mod rules;

use crate::labels::Labels;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A process of a user that acts when it is asked to.
pub(crate) struct Actor {
    child: Child,
    acts: ChildStdin,
    results: Lines<BufReader<ChildStdout>>,
    /// Results that were not as required; the test prints all of them when the actor ends.
    wrong: Vec<String>,
}

impl Actor {
    pub(crate) fn start(uid: u32) -> Self {
        let mut actor = crate::actor(uid, &[]);
        let child = actor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let acts = child.stdin.take().unwrap();
        let results = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            acts,
            results,
            wrong: Vec::new(),
        }
    }

    /// Starts an actor with a label.
    pub(crate) fn labelled(uid: u32, name: &str) -> Self {
        let mut actor = Self::start(uid);
        actor.does(&format!("label:test/{name}"), "ok");
        actor
    }

    /// The result of an act: `ok`, or the name of an error.
    pub(crate) fn act(&mut self, act: &str) -> String {
        writeln!(self.acts, "{act}").unwrap();
        let line = self.results.next();
        let line = line
            .unwrap_or_else(|| panic!("no result of {act}"))
            .unwrap();
        let (_, result) = line.split_once(' ').unwrap();
        result.to_owned()
    }

    /// Requires the result of an act.
    fn does(&mut self, act: &str, result: &str) {
        let found = self.act(act);
        if found != result {
            self.wrong.push(format!("{act}: {found} and not {result}"));
        }
    }

    /// Requires the result of each act.
    pub(crate) fn does_all(&mut self, cases: &[(String, &str)]) {
        for (act, result) in cases {
            self.does(act, result);
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("{:#?}", self.wrong);
        } else {
            assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        }
    }
}

/// Requires that the first actor is permitted each act, and that the second one is refused it with
/// the result.
fn attempt<'a>(
    [permitted, refused]: &mut [Actor; 2],
    cases: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    for (act, result) in cases {
        permitted.does(act, "ok");
        refused.does(act, result);
    }
}

/// All of these in one world, because loading the module takes longest.
#[test]
fn modules_with_labels_withstand_attacks() {
    let Some(mut labels) = Labels::new("attacks", 50) else {
        return;
    };
    by_label::no_way_to_a_labelled_file_evades_its_label(&mut labels);
    processes::no_way_to_another_process_or_its_files_evades_a_module(&mut labels);
    lifetimes::nothing_of_a_module_is_left_when_it_comes_again(&mut labels);
}
