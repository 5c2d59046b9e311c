//! Runs `tests/scripts/*.txt`. `UPDATE=1 cargo test -p coppice-ordering --test scripts` rewrites what they print.

mod cluster;

use std::path::Path;

#[test]
fn scripts_print_what_they_printed() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(&directory).expect("scripts").map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let mut differ = Vec::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ext| ext == "txt")) {
        println!("{}", path.display());
        let text = std::fs::read_to_string(path).expect("a script");
        let printed = cluster::script::run(&text);
        if printed != text {
            if std::env::var("UPDATE").is_ok() {
                std::fs::write(path, printed).expect("the script is written");
            } else {
                let line = text.lines().zip(printed.lines()).position(|(a, b)| a != b).unwrap_or(0);
                let (want, got) = (text.lines().nth(line), printed.lines().nth(line));
                differ.push(format!("{}:{}: {want:?} became {got:?}", path.display(), line + 1));
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
