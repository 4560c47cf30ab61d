//! The way over a device, on the simulated driver: there is no figure to judge, and every call is made.

use clap::Parser;
use green_ctx::{Driver, sim_0_1::Sim};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Oracle,
}

#[test]
fn a_mix_runs_on_a_device() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("green-ctx-oracle-{}", std::process::id()));
    let line = "oracle --pair copy:1,small:1 --step 64 --no-priorities --passes 1 --block-ms 1 \
        --goals throughput,least:80:1 --budget 0.5 --blocks 2 --most-blocks 2 --final-ms 1 --out";
    let line = line.split_whitespace().map(Into::into).chain([folder.clone().into_os_string()]);
    let options = Line::parse_from(line).options;
    let sim = Sim::new("h200")?;
    green_ctx_cli::jobs::register(&sim);
    let device = Driver::simulated(&sim)?.device(0)?;
    std::fs::create_dir_all(&folder)?;

    let mix = &options.mixes[0];
    let pieces = Pieces { sms: 132, unit: 8, odd: 12 };
    let mut runs = Runs::new(&options, &device, false)?;
    let mut bed = runs.bed(&device, mix, &pieces)?;
    assert_eq!(*bed.pieces(), pieces);
    let file = MixFile::new(&options, mix, &device, true, &*bed)?;
    assert!(measure::run(&mut *bed, file, &options, &folder, &Progress::new())?);

    let files = file::read_all(std::slice::from_ref(&folder))?;
    std::fs::remove_dir_all(&folder)?;
    let [file] = &files[..] else { return Err("one file".into()) };
    assert_eq!(file.names(), ["copy1", "small1"]);
    assert!(file.arms.iter().all(|arm| arm.skipped.is_none() && !arm.blocks.is_empty()));
    assert_eq!(file.combinations.len(), 2);
    for combination in &file.combinations {
        assert_eq!(combination.error, None);
        assert!(combination.finalists.iter().all(|finalist| finalist.blocks.len() == 2));
        assert!(judge(&combination.finalists).is_some());
    }
    Ok(())
}
