# gnuplot 2026-11-30-kept-logits.gnuplot: the rows `kept` of 2026-11-30-h200.jsonl
set terminal svg size 800,450 dynamic background rgb 'white'
set output '2026-11-30-kept-logits.svg'
set title 'forward, then backward: 8192 x 4096 x 128256, bf16, one H200, 2048 rows a chunk'
set xlabel 'logits kept between the two, MiB'
set ylabel 'milliseconds'
set xrange [-60:2100]
set yrange [0:60]
set key bottom left
set grid
# MiB kept, measured, the line of 8NVD - 2mVD operations through the first point
$d << EOD
0 54.12 54.12
501 50.69 50.74
1002 47.32 47.36
2004 41.35 40.59
EOD
plot $d using 1:2 with linespoints pointtype 7 title 'measured', $d using 1:3 with lines dashtype 2 title 'by its operations'
