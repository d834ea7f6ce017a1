module tidemark.dev/tests/benchmarks/latency

go 1.26.0

require github.com/twmb/franz-go v1.21.3

require (
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/pierrec/lz4/v4 v4.1.31 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.13.1 // indirect
)
