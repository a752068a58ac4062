//! `usher mac`: the modules of mandatory access control, and labels.

mod interfaces;
mod login;
mod ls;
mod ps;
mod refusals;
mod relabel;
mod ugidfw;

use std::path::PathBuf;

use clap::Subcommand;
use usher_daemon::control::ask_daemon;
use usher_local::requests::{Mac, MacLoad, MacUnload, MacView, ModuleView, UNREADABLE_NOTES};
use usher_local::roles;
use usher_policy::mac::te;

use crate::failure::Failure;
use crate::output::{Output, row, some, table};

/// Commands about modules.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put a module in force, with the settings of the policy, now and after every reboot
    Load {
        /// Name of the module
        name: String,
    },
    /// End a module, now and after every reboot
    Unload {
        /// Name of the module
        name: String,
    },
    /// List the modules, or one module with its settings and refusals
    List {
        /// Name of the module
        name: Option<String>,
    },
    /// Print statements of `mac te` that permit what the module has refused, or would have refused to permissive
    /// domains, since its settings came into force
    Learn,
    /// Show what is in force in the kernel, and what is missing
    Status,
    /// Show what modules have refused, in kinds, since the labeller runs
    Refusals {
        /// Name of the module; otherwise all
        module: Option<String>,
    },
    /// List the processes of this host with their labels
    Ps,
    /// List the network interfaces of this host with their labels
    If,
    /// Check the file of labels at login, and show which users get which
    Login {
        /// Users whose labels are shown; otherwise the lines of the file
        users: Vec<String>,
        /// The file
        #[arg(short, long, value_name = "FILE", default_value = usher_system_label::login::MAC_LOGIN)]
        file: PathBuf,
    },
    /// List and change the rules of `bsdextended` by the commands of FreeBSD's ugidfw(8)
    Ugidfw {
        #[command(subcommand)]
        command: ugidfw::Command,
    },
    /// Give files the labels that the specification of the policy in force has for them
    Relabel(relabel::Request),
    /// List files with their labels
    Ls {
        /// Files, and directories whose files are listed
        #[arg(default_value = ".")]
        paths: Vec<PathBuf>,
        /// List directories themselves
        #[arg(short, long)]
        directory: bool,
    },
}

/// Runs a command.
///
/// # Errors
/// When the labeller does not answer, or refuses; when labels cannot be read.
pub fn run(output: &Output, command: &Command) -> Result<(), Failure> {
    let status = || ask_daemon(roles::Labeller, &Mac {});
    match command {
        Command::Load { name } => {
            let module = name.clone();
            let view = ask_daemon(roles::Labeller, &MacLoad { module })?;
            // JSON of `usher mac load`: as `usher mac status`.
            output.print(&view, || loaded(&view, name));
        }
        Command::Unload { name } => {
            let module = name.clone();
            let view = ask_daemon(roles::Labeller, &MacUnload { module })?;
            // JSON of `usher mac unload`: as `usher mac status`.
            output.print(&view, || format!("{name} is no longer in force\n"));
        }
        Command::List { name: None } => {
            let view = status()?;
            // JSON of `usher mac list`: as `usher mac status`.
            output.print(&view, || modules_list(&view));
        }
        Command::List { name: Some(name) } => {
            let view = status()?;
            let Some(module) = view.modules.iter().find(|module| module.name == *name) else {
                return Err(Failure::Refused(match view.unusable.get(name) {
                    Some(reason) => format!("{name} cannot be loaded: {reason}"),
                    None if view.available.contains(name) => {
                        format!("{name} is not loaded; `usher mac load {name}` loads it")
                    }
                    None => format!("there is no module {name}; `usher mac list` has all"),
                }));
            };
            // JSON of `usher mac list NAME`: [`ModuleView`].
            output.print(module, || one(module));
        }
        Command::Refusals { module } => refusals::run(output, module.as_deref())?,
        Command::Learn => {
            let view = status()?;
            let Some(module) = view.modules.iter().find(|module| module.name == te::MODULE) else {
                let reason = "te is not loaded; `usher mac load te` loads it";
                return Err(Failure::Refused(reason.into()));
            };
            let mut troubles = view.troubles.iter();
            if let Some(trouble) = troubles.find(|one| one.starts_with(UNREADABLE_NOTES)) {
                return Err(Failure::Refused(trouble.clone()));
            }
            // JSON of `usher mac learn`: a list of texts, the statements without `;`.
            output.print(&module.lacking, || learned(module));
        }
        Command::Ps => ps::run(output)?,
        Command::If => interfaces::run(output, status()?.interfaces)?,
        Command::Login { users, file } => login::run(output, file, users)?,
        Command::Ugidfw { command } => ugidfw::run(output, command)?,
        Command::Relabel(request) => relabel::run(output, request)?,
        Command::Ls { paths, directory } => ls::run(output, paths, *directory)?,
        Command::Status => {
            let view = status()?;
            // JSON of `usher mac status`: [`MacView`].
            output.print(&view, || modules_text(&view));
        }
    }
    Ok(())
}

fn loaded(view: &MacView, name: &str) -> String {
    let module = view.modules.iter().find(|module| module.name == name);
    let hooks = module.map_or(0, |module| module.hooks.len());
    let settings = module.map_or(0, |module| module.settings.len());
    format!("{name} is in force at {hooks} hook(s), with {settings} statement(s) of the policy\n")
}

fn modules_list(view: &MacView) -> String {
    let loaded = view.modules.iter().map(|module| {
        let refusals: u64 = module.refusals.values().sum();
        let state = if module.has_changed {
            "in force; its file has changed since"
        } else {
            "in force"
        };
        row![
            module.name,
            state,
            module.hooks.len(),
            module.settings.len(),
            refusals
        ]
    });
    let others = view.available.iter().map(|name| {
        let state = if view.waiting.contains(name) {
            "not loaded: its `mac` block waits"
        } else {
            "not loaded"
        };
        row![name, state, "-", "-", "-"]
    });
    let unusable = view.unusable.keys();
    let unusable = unusable.map(|name| row![name, "cannot be loaded", "-", "-", "-"]);
    let mut text = table(
        ["MODULE", "STATE", "HOOKS", "STATEMENTS", "REFUSALS"],
        loaded.chain(others).chain(unusable),
    );
    for reason in view.unusable.values() {
        text += &format!("\n{reason}\n");
    }
    text
}

fn one(module: &ModuleView) -> String {
    let hooks = module.hooks.iter().map(|hook| {
        let refusals = module.refusals.get(hook).copied().unwrap_or(0);
        row![hook, refusals]
    });
    let mut text = table(["HOOK", "REFUSALS"], hooks);
    if let Some(file) = &module.file {
        text += &format!("\nfrom {file}\n");
    }
    if module.lowered > 0 {
        text += &format!("\nprocesses that it has lowered: {}\n", module.lowered);
    }
    if module.has_changed {
        let name = &module.name;
        text += &format!(
            "that file has changed since; `usher mac unload {name}` and `usher mac load {name}` put \
             it in force as it is now\n"
        );
    }
    let settings = module.settings.iter().enumerate();
    let settings = settings.map(|(number, statement)| row![number + 1, statement]);
    let settings = table(["NUMBER", "STATEMENT"], settings);
    text += &match settings.as_str() {
        "" => "\nthe policy in force has no statements for it\n".to_owned(),
        settings => format!("\n{settings}"),
    };
    text
}

/// Statements for a policy.
fn learned(module: &ModuleView) -> String {
    let statements = module.lacking.iter();
    let mut text: String = statements.map(|line| format!("  {line};\n")).collect();
    if text.is_empty() && module.unlearned == 0 {
        text.push_str("# nothing has been refused since the settings came into force\n");
    }
    if module.unlearned > 0 {
        text.push_str(&format!(
            "# {} refusals without a statement: of names that the policy does not declare, or more than are noted\n",
            module.unlearned
        ));
    }
    text
}

fn modules_text(view: &MacView) -> String {
    let mut text = String::new();
    if let Some(lacks) = &view.unsupported {
        text += &format!("{lacks}\n");
    }
    let names = view.modules.iter().map(|module| &module.name);
    text += &format!("modules in force: {}\n", some(names));
    text += &format!("hooks attached: {}\n", some(&view.hooks));
    text += &format!(
        "`mac` blocks that wait for their module: {}\n",
        some(&view.waiting)
    );
    text += if view.is_guarded {
        "guarded: only the labeller touches the modules in the kernel\n"
    } else {
        "not guarded: root's processes can touch the modules in the kernel\n"
    };
    let file_systems = view.multilabel.iter().map(|one| {
        let state = match (&one.trouble, one.is_walking) {
            (Some(trouble), _) => trouble.as_str(),
            (None, true) => "looking at all files",
            (None, false) => "watched",
        };
        let counts = [one.persisted, one.unlabelled, one.failed];
        row![one.path, counts[0], counts[1], counts[2], state]
    });
    text += &table(
        ["MULTILABEL", "PERSISTED", "UNLABELLED", "FAILED", "STATE"],
        file_systems,
    );
    if view.unknown_refusals > 0 {
        text += &format!(
            "refused because a label was not known: {}\n",
            view.unknown_refusals
        );
    }
    if view.lost_events > 0 {
        text += &format!(
            "refusals and lowered processes that no line tells of: {}\n",
            view.lost_events
        );
    }
    for trouble in &view.troubles {
        text += &format!("trouble: {trouble}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use usher_local::requests::MultilabelView;

    use super::*;

    fn view() -> MacView {
        MacView {
            modules: vec![ModuleView {
                name: "bsdextended".into(),
                hooks: vec!["file_open".into(), "inode_link".into()],
                refusals: [("file_open".to_owned(), 3)].into(),
                settings: vec!["rule mode n".into()],
                ..ModuleView::default()
            }],
            available: vec!["none".into(), "test".into()],
            waiting: vec!["test".into()],
            hooks: vec!["file_open".into(), "inode_link".into()],
            ..MacView::default()
        }
    }

    #[test]
    fn modules_are_listed_with_those_that_wait() {
        let expected = "MODULE       STATE                              HOOKS  STATEMENTS  REFUSALS\n\
                        bsdextended  in force                           2      1           3\n\
                        none         not loaded                         -      -           -\n\
                        test         not loaded: its `mac` block waits  -      -           -\n";
        assert_eq!(modules_list(&view()), expected);
    }

    #[test]
    fn files_that_are_no_modules_are_listed_with_the_reason() {
        let mut view = view();
        view.modules[0].has_changed = true;
        view.unusable = [(
            "draft".to_owned(),
            "draft.bpf.o: it has no check".to_owned(),
        )]
        .into();
        let listed = modules_list(&view);
        for line in [
            "bsdextended  in force; its file has changed since  2      1           3\n",
            "draft        cannot be loaded                      -      -           -\n",
            "\ndraft.bpf.o: it has no check\n",
        ] {
            assert!(listed.contains(line), "{line}{listed}");
        }
        assert!(!modules_list(&super::tests::view()).contains("cannot be loaded"));
    }

    #[test]
    fn a_module_from_a_file_is_shown_with_the_file() {
        let mut module = view().modules.remove(0);
        assert!(!one(&module).contains("from "));
        assert!(!one(&module).contains("lowered"));
        module.lowered = 4;
        assert!(one(&module).contains("processes that it has lowered: 4\n"));
        module.file = Some("/mac/bsdextended.bpf.o".into());
        assert!(one(&module).contains("\nfrom /mac/bsdextended.bpf.o\n"));
        assert!(!one(&module).contains("has changed"));
        module.has_changed = true;
        assert!(
            one(&module).contains("that file has changed since; `usher mac unload bsdextended`")
        );
    }

    #[test]
    fn one_module_is_shown_with_its_statements() {
        let expected = "HOOK        REFUSALS\nfile_open   3\ninode_link  0\n\n\
                        NUMBER  STATEMENT\n1       rule mode n\n";
        assert_eq!(one(&view().modules[0]), expected);
    }

    #[test]
    fn what_te_has_learned_is_printed_as_statements() {
        let mut module = ModuleView::default();
        assert!(learned(&module).starts_with("# nothing"));
        module.lacking = vec!["allow imapd mail file read".into()];
        assert_eq!(learned(&module), "  allow imapd mail file read;\n");
        module.unlearned = 2;
        assert!(learned(&module).contains("\n# 2 refusals without a statement"));
        module.lacking.clear();
        assert!(learned(&module).starts_with("# 2 refusals without a statement"));
    }

    #[test]
    fn the_status_says_what_the_kernel_lacks() {
        let lacking = MacView {
            unsupported: Some("it has no hook x".into()),
            troubles: vec!["none: no".into()],
            unknown_refusals: 3,
            lost_events: 5,
            multilabel: vec![MultilabelView {
                path: "/srv".into(),
                persisted: 7,
                unlabelled: 1,
                ..MultilabelView::default()
            }],
            ..MacView::default()
        };
        let told = modules_text(&lacking);
        assert!(told.starts_with("it has no hook x\n"), "{told}");
        assert!(told.contains("modules in force: -\n") && told.contains("trouble: none: no\n"));
        let row = "/srv        7          1           0       watched\n";
        assert!(told.contains(row), "{told}");
        assert!(told.contains("refused because a label was not known: 3\n"));
        assert!(told.contains("that no line tells of: 5\n"));
        assert!(!modules_text(&view()).contains("refus"));
        assert!(!modules_text(&view()).contains("trouble"));
        assert!(!modules_text(&view()).contains("MULTILABEL"));
    }
}
