# gnuplot 2026-11-30-h200.gnuplot: time against memory, the sweeps of 2026-11-30-h200.jsonl
set terminal svg size 800,540 dynamic background rgb 'white'
set output '2026-11-30-h200.svg'
set title 'forward and backward of 8192 rows, bf16, float32 dW, H200; 1024, 2048, 4096 rows a chunk'
set xlabel 'workspace, MiB'
set ylabel 'milliseconds'
set logscale x 2
set xrange [256:2300]
set yrange [0:56]
set key outside below
set grid
# MiB, pass, its three products alone
$one_4096 << EOD
282.7 43.35 41.34
533.3 39.14 40.36
1034.5 39.26 39.17
EOD
$two_4096 << EOD
314.8 21.78 21.92
597.6 20.61 20.36
1163.2 20.14 20.02
EOD
$one_2048 << EOD
328.2 25.94 24.37
624.3 24.89 22.83
1216.5 23.73 22.40
EOD
$one_2304 << EOD
532.2 50.35 48.40
1032.3 46.63 42.76
2032.5 45.80 42.68
EOD
plot $one_4096 using 1:2 with linespoints linetype 1 pointtype 7 title '4096 x 128256, one GPU', $one_4096 using 1:3 with lines linetype 1 dashtype 2 title 'its products alone', \
     $two_4096 using 1:2 with linespoints linetype 2 pointtype 7 title '4096 x 128256, two GPUs', $two_4096 using 1:3 with lines linetype 2 dashtype 2 title 'its products alone', \
     $one_2048 using 1:2 with linespoints linetype 3 pointtype 7 title '2048 x 151552, one GPU', $one_2048 using 1:3 with lines linetype 3 dashtype 2 title 'its products alone', \
     $one_2304 using 1:2 with linespoints linetype 4 pointtype 7 title '2304 x 256000, one GPU', $one_2304 using 1:3 with lines linetype 4 dashtype 2 title 'its products alone'
