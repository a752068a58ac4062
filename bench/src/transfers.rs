//! File transfers by ESP, the paper's tables 1 and 2: see `usher-bench-transfers`.

use std::error::Error;
use std::path::Path;

use crate::guest;
use crate::report::{Row, relate_by_ending};

/// The time limit of the guest in seconds: several times what 500 files take on idle processors.
const SECONDS: u32 = 7200;

/// The ways, as the program names them, in the order of the table's columns.
const WAYS: [&str; 4] = ["plain", "by_hand", "policy", "other"];

/// Measures on this kernel. `sizes` are the number of files of 2 KB, the megabytes of the large file,
/// and the rounds. Ratios are to IPsec configured by hand; those of programs that no policy names, to
/// the same in the clear without Usher.
pub fn measure(
    kernel: &str,
    programs: &Path,
    sizes: [usize; 3],
) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("file transfers, in a guest ...");
    let program = programs.join("usher-bench-transfers");
    let mut rows = guest::rows(kernel, SECONDS, &program, &sizes)?;
    relate_by_ending(&mut rows, "/by_hand", &["/plain", "/by_hand", "/policy"]);
    relate_by_ending(&mut rows, "/plain", &["/other"]);
    Ok(rows)
}

/// Prints the paper's tables 1 and 2, with SFTP beside: a line for each transfer.
pub fn print(rows: &[Row]) {
    println!("file transfers: thousands of instructions a file or a megabyte, medians");
    print!("{:<12}", "");
    for way in WAYS {
        print!(" {way:>10}");
    }
    println!(" {:>15} {:>12}", "policy/by_hand", "other/plain");
    for (transfer, all) in lines(rows) {
        print!("{transfer:<12}");
        for row in all {
            print!(" {:>10.0}", row.median / 1000.0);
        }
        let ratio = |at: usize| {
            let ratio = all[at].ratio;
            ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"))
        };
        println!(" {:>15} {:>12}", ratio(2), ratio(3));
    }
}

/// Each transfer with its row for each way.
fn lines(rows: &[Row]) -> Vec<(&str, [&Row; WAYS.len()])> {
    let first = format!("/{}", WAYS[0]);
    let of = |transfer: &str, way: &str| {
        let name = format!("{transfer}/{way}");
        rows.iter().find(|row| row.name == name)
    };
    rows.iter()
        .filter_map(|row| row.name.strip_suffix(&first))
        .filter_map(|transfer| {
            let all: Option<Vec<&Row>> = WAYS.iter().map(|way| of(transfer, way)).collect();
            let name = transfer.rsplit('/').next()?;
            Some((name, all?.try_into().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Row, lines};

    #[test]
    fn only_what_all_ways_transfer_is_a_line() {
        let names = [
            "ipsec/at_rest/plain",
            "ipsec/ftp_files/plain",
            "ipsec/ftp_files/by_hand",
            "ipsec/ftp_files/policy",
            "ipsec/ftp_files/other",
        ];
        let rows: Vec<Row> = (1..)
            .zip(names)
            .map(|(median, name)| Row::new(name, vec![f64::from(median)]))
            .collect();
        let lines = lines(&rows);
        assert_eq!(lines.len(), 1);
        let (name, all) = lines[0];
        assert_eq!(name, "ftp_files");
        assert_eq!(all.map(|row| row.median), [2.0, 3.0, 4.0, 5.0]);
    }
}
