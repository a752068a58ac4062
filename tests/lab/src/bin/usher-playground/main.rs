//! `make lab`: the two hosts of the demo, with Usher running, until Enter or Ctrl-C. It prints how to open shells in
//! them, and removes everything that it made when it ends.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use usher_lab::{ALICE, BOB, CAROL, Interruption, Lab, LabError, Mail, User};

/// Reasons for the playground to end early.
#[derive(Debug, thiserror::Error)]
enum PlaygroundError {
    /// The lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(#[from] nix::Error),
    /// The terminal, or a file.
    #[error("{0}")]
    System(#[from] io::Error),
}

fn main() -> ExitCode {
    let interruption = Interruption::of("usher-playground");
    let result = run(&interruption);
    interruption.give_way();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usher-playground: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(interruption: &Interruption) -> Result<(), PlaygroundError> {
    let lab = Lab::new()?;
    let remover = lab.remover();
    interruption.removes(remover.clone())?;
    let mail = Mail::on(lab)?;
    explain(&mail)?;
    io::stdin().read_line(&mut String::new())?;
    drop(mail);
    // Dropping the value removed the lab; remove it once more, to see an error.
    Ok(remover.remove()?)
}

fn explain(mail: &Mail) -> Result<(), PlaygroundError> {
    let mut shells = vec![
        ("root on mailhost".to_owned(), mail.mailhost.shell(None)?),
        ("root on laptop".to_owned(), mail.laptop.shell(None)?),
    ];
    for User { name, .. } in [ALICE, BOB, CAROL] {
        let shell = mail.laptop.shell(Some(name))?;
        shells.push((format!("{name} on laptop"), shell));
    }
    let lines = shells
        .iter()
        .map(|(whose, shell)| format!("    {whose:<17} {}\n", shell.display()));
    let shells: String = lines.collect();
    let mut to = io::stdout();
    write!(
        to,
        "Two hosts are up, laptop and mailhost, and Usher runs on both. alice, bob and carol have accounts and keys;
mailhost's IMAP server serves alice and bob as themselves, and refuses carol.

Open shells in other terminals, as root:

{shells}
As alice on laptop:

    usher connect mailhost:imap       be greeted as alice without a password; then a LOGOUT
    curl imap://mailhost/INBOX        a mail program that knows nothing of Usher, through the proxy

On mailhost:

    usher who --watch                 who comes and goes
    usher user disable alice          cuts what alice has open; `usher user enable alice` admits her again
    usher policy explain alice@laptop imap@mailhost
    cat /etc/usher/policy.d/mail.policy    edit it, then `usher policy apply`
    usher log show

Press Enter to remove everything.
"
    )?;
    Ok(to.flush()?)
}
