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
157.4 50.80 50.59
282.7 41.73 40.81
533.3 39.55 38.94
1034.5 38.65 38.29
EOD
$two_4096 << EOD
314.8 21.57 21.92
597.6 20.42 19.96
1163.2 20.18 20.12
EOD
$one_2048 << EOD
180.1 31.96 29.71
328.2 25.30 24.19
624.3 24.21 22.64
1216.5 23.71 22.58
EOD
$one_2304 << EOD
282.1 59.75 56.76
532.2 50.47 49.21
1032.3 46.20 43.36
2032.5 45.23 43.83
EOD
plot $one_4096 using 1:2 with linespoints linetype 1 pointtype 7 title '4096 x 128256, one GPU', $one_4096 using 1:3 with lines linetype 1 dashtype 2 title 'its products alone', \
     $two_4096 using 1:2 with linespoints linetype 2 pointtype 7 title '4096 x 128256, two GPUs', $two_4096 using 1:3 with lines linetype 2 dashtype 2 title 'its products alone', \
     $one_2048 using 1:2 with linespoints linetype 3 pointtype 7 title '2048 x 151552, one GPU', $one_2048 using 1:3 with lines linetype 3 dashtype 2 title 'its products alone', \
     $one_2304 using 1:2 with linespoints linetype 4 pointtype 7 title '2304 x 256000, one GPU', $one_2304 using 1:3 with lines linetype 4 dashtype 2 title 'its products alone'
