//! `usher mac login`: the labels that users get at login.

use std::path::Path;

use serde::Serialize;
use usher_language::Mistake;
use usher_system_label::login::{
    LoginError, Person, deciding_line, is_group, read_login_labels, user_id,
};

use usher::mac::{ElementKind, Label, LoginLabels, LoginLine, LoginSubject};

use crate::failure::{At, Failure};
use crate::output::{Output, or_dash, row, table, warn};

/// A line of the file.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Line {
    /// Its number, from 1.
    line: usize,
    /// `user NAME`, `group NAME` or `default`.
    subject: String,
    /// Null: `-`.
    label: Option<Label>,
}

/// A user.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct User {
    /// The name, or number, that was asked about.
    user: String,
    /// Null: none.
    label: Option<Label>,
    /// The line that decides. Null: none does.
    line: Option<usize>,
    /// Whom that line names, as `user NAME`, `group NAME` or `default`. Null: no line decides.
    subject: Option<String>,
}

/// Checks the file and prints the labels of these users, or its lines if there are none.
///
/// # Errors
/// When the file cannot be used, or the name service does not know a user.
pub(super) fn run(output: &Output, file: &Path, users: &[String]) -> Result<(), Failure> {
    let file = std::path::absolute(file).at(file)?;
    if file != Path::new(usher_system_label::login::MAC_LOGIN)
        && matches!(file.try_exists(), Ok(false))
    {
        return Err(Failure::of_file(&file, "there is no such file"));
    }
    let labels = read_login_labels(&file)
        .map_err(refused)?
        .unwrap_or_default();
    check_values(&file, &labels)?;
    if users.is_empty() {
        warn_of_unknown(&file, &labels)?;
        let lines: Vec<Line> = labels.lines().map(line).collect();
        // JSON of `usher mac login`: a list of [`Line`].
        output.print(&lines, || text_of_lines(&lines));
        return Ok(());
    }
    let found = users.iter().map(|user| of_user(&labels, user));
    let found: Vec<User> = found.collect::<Result<_, _>>().map_err(refused)?;
    // JSON of `usher mac login USER`: a list of [`User`].
    output.print(&found, || users_text(&found));
    Ok(())
}

/// A failure with all mistakes, one a line.
fn refused(error: LoginError) -> Failure {
    let LoginError::Mistakes(mistakes) = error else {
        return Failure::Refused(error.to_string());
    };
    let mistakes = mistakes.iter();
    let told = mistakes.map(|mistake| format!("{mistake}; {}", mistake.remedy()));
    Failure::Refused(told.collect::<Vec<_>>().join("\n"))
}

/// Refuses values of Usher's own modules that the kernel would refuse at login.
fn check_values(file: &Path, labels: &LoginLabels) -> Result<(), Failure> {
    let mut mistakes = Vec::new();
    for line in labels.lines() {
        for (name, value) in line.label.iter().flat_map(Label::elements) {
            let kind = ElementKind::of_module(name.as_ref());
            if let Some(Err(mistake)) = kind.map(|kind| kind.read(value)) {
                mistakes.push(format!(
                    "{}:{}: `{name}/{value}`: {mistake}; {}",
                    file.display(),
                    line.line,
                    mistake.remedy()
                ));
            }
        }
    }
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(mistakes.join("\n")))
}

fn warn_of_unknown(file: &Path, labels: &LoginLabels) -> Result<(), Failure> {
    for line in labels.lines() {
        let is_known = match &line.subject {
            LoginSubject::User(name) => user_id(name).map(|found| found.is_some()),
            LoginSubject::Group(name) => is_group(name),
            LoginSubject::Default => Ok(true),
        };
        let is_known = is_known.map_err(|error| {
            let subject = &line.subject;
            Failure::Refused(format!(
                "the name service cannot look up {subject}: {error}"
            ))
        })?;
        if !is_known {
            warn(&format!(
                "{}:{}: this host has no {}",
                file.display(),
                line.line,
                line.subject
            ));
        }
    }
    Ok(())
}

fn line(line: &LoginLine) -> Line {
    Line {
        line: line.line,
        subject: line.subject.to_string(),
        label: line.label.clone(),
    }
}

fn of_user(labels: &LoginLabels, user: &str) -> Result<User, LoginError> {
    let found = deciding_line(labels, &Person::of(user)?)?;
    Ok(User {
        user: user.to_owned(),
        label: found.and_then(|line| line.label.clone()),
        line: found.map(|line| line.line),
        subject: found.map(|line| line.subject.to_string()),
    })
}

fn users_text(users: &[User]) -> String {
    let rows = users.iter().map(|user| {
        let (label, subject) = (user.label.as_ref(), user.subject.as_deref());
        let subject = subject.unwrap_or("no line");
        row![user.user, or_dash(label), or_dash(user.line), subject]
    });
    table(["USER", "LABEL", "LINE", "BY"], rows)
}

fn text_of_lines(lines: &[Line]) -> String {
    let rows = lines
        .iter()
        .map(|line| row![line.line, line.subject, or_dash(line.label.as_ref())]);
    table(["LINE", "FOR", "LABEL"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the modules' C files, because this program links no module.
    #[test]
    fn kinds_are_those_that_the_modules_declare() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf/mac/modules");
        for (module, kind) in ElementKind::OF_MODULES {
            let source = folder.join(format!("{module}.bpf.c"));
            let source = std::fs::read_to_string(source).unwrap();
            let declared = match kind {
                ElementKind::Levels => "USHER_MAC_LEVELS",
                ElementKind::Auxiliary => "USHER_MAC_AUXILIARY",
                ElementKind::Number => "USHER_MAC_NUMBER",
                ElementKind::Name => "USHER_MAC_NAME",
            };
            let declares =
                |end| source.contains(&format!("MAC_POLICY({module}, .label = {declared}{end}"));
            assert!(declares(",") || declares(")"), "{module}");
        }
    }

    #[test]
    fn a_user_is_shown_with_the_line_that_decides() {
        let labels = |text: &str| {
            let source = usher_policy::Source {
                name: "mac.login".to_owned(),
                text: text.to_owned(),
            };
            LoginLabels::parse(source).unwrap()
        };
        let file = labels("group daemon test/b\nuser root -\n");
        let users = ["daemon", "root", "bin"].map(|user| of_user(&file, user).unwrap());
        let expected = "USER    LABEL   LINE  BY\n\
                        daemon  test/b  1     group daemon\n\
                        root    -       2     user root\n\
                        bin     -       -     no line\n";
        assert_eq!(users_text(&users), expected);
        let lines: Vec<Line> = file.lines().map(line).collect();
        let expected = "LINE  FOR           LABEL\n\
                        2     user root     -\n\
                        1     group daemon  test/b\n";
        assert_eq!(text_of_lines(&lines), expected);
        assert!(of_user(&file, "no-such-user").is_err());
        let file = labels("default biba/bogus,mls/low\nuser root biba/equal\n");
        let told = check_values(Path::new("/f"), &file)
            .unwrap_err()
            .to_string();
        assert!(told.starts_with("/f:1: `biba/bogus`: "), "{told}");
        assert_eq!(told.lines().count(), 1);
    }
}
