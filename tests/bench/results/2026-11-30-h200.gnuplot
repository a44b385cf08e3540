# gnuplot 2026-11-30-h200.gnuplot: time against memory, the sweeps of 2026-11-30-h200.jsonl
set terminal svg size 800,540 dynamic background rgb 'white'
set output '2026-11-30-h200.svg'
set title '8192 rows, bf16, float32 dW, H200; 512 (one GPU), 1024, 2048, 4096 rows a chunk'
set xlabel 'workspace, MiB'
set ylabel 'milliseconds'
set logscale x 2
set xrange [128:2300]
set yrange [0:64]
set key outside below
set grid
# MiB, pass, its three products alone
$one_4096 << EOD
157.4 51.31 51.25
282.7 41.98 41.22
533.3 39.25 39.78
1034.5 38.78 39.14
EOD
$two_4096 << EOD
314.8 21.78 21.92
597.6 20.61 20.36
1163.2 20.14 20.02
EOD
$one_2048 << EOD
180.1 31.84 30.04
328.2 25.56 24.39
624.3 24.21 22.60
1216.5 23.75 22.57
EOD
$one_2304 << EOD
282.1 60.01 57.98
532.2 51.43 48.62
1032.3 47.09 45.75
2032.5 46.57 44.15
EOD
plot $one_4096 using 1:2 with linespoints linetype 1 pointtype 7 title '4096 x 128256, one GPU', $one_4096 using 1:3 with lines linetype 1 dashtype 2 title 'its products alone', \
     $two_4096 using 1:2 with linespoints linetype 2 pointtype 7 title '4096 x 128256, two GPUs', $two_4096 using 1:3 with lines linetype 2 dashtype 2 title 'its products alone', \
     $one_2048 using 1:2 with linespoints linetype 3 pointtype 7 title '2048 x 151552, one GPU', $one_2048 using 1:3 with lines linetype 3 dashtype 2 title 'its products alone', \
     $one_2304 using 1:2 with linespoints linetype 4 pointtype 7 title '2304 x 256000, one GPU', $one_2304 using 1:3 with lines linetype 4 dashtype 2 title 'its products alone'
