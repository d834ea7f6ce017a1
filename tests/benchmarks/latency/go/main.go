// Command latency is an open-loop producer. It schedules single records at a fixed rate and writes, for each record, when it was
// due, when it was handed to franz-go and when it was acknowledged: three little-endian int64 of nanoseconds of CLOCK_MONOTONIC.
// A record that was not acknowledged has 0 as its last number. A slow broker delays no record's schedule (no coordinated omission).
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A batch cannot hold two records of the single mode: this is less than two records, and more than one with its batch header.
const batchOverhead = 256

const (
	produceKey      = 0
	clockMonotonic  = 1
	prSetTimerSlack = 29
	inFlight        = 10_000
)

type sample struct{ due, sent, acknowledged int64 }

// requests counts the Produce requests that were answered.
type requests struct{ count atomic.Int64 }

func (r *requests) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, _ kgo.BrokerE2E) {
	if key == produceKey {
		r.count.Add(1)
	}
}

func main() {
	bootstrap := flag.String("bootstrap", "", "addresses of brokers")
	topic := flag.String("topic", "", "topic to produce to")
	partitions := flag.Int("partitions", 1, "partitions of the topic")
	rate := flag.Int("rate", 1000, "records a second, of all connections together")
	seconds := flag.Float64("seconds", 10, "duration of the schedule")
	connections := flag.Int("connections", 6, "producers, each with its own connections")
	bytes := flag.Int("bytes", 1024, "size of a record's value")
	linger := flag.Duration("linger", 0, "time that a producer waits for more records of a batch. 0: a request for each record")
	drain := flag.Duration("drain", 20*time.Second, "time to wait for acknowledgements after the schedule")
	out := flag.String("out", "", "file for the times")
	flag.Parse()

	// The client must not cause what it measures: few collections of garbage, wake-ups within microseconds.
	debug.SetGCPercent(800)
	clock := newClock()
	value := make([]byte, *bytes)
	_, err := rand.Read(value)
	check(err)
	count := &requests{}
	background := context.Background()
	producers := make([]*kgo.Client, *connections)
	for number := range producers {
		producers[number] = newProducer(*bootstrap, *linger, *bytes, count)
		defer producers[number].Close()
		// Connections and metadata exist before the schedule begins.
		first := &kgo.Record{Topic: *topic, Partition: int32(number % *partitions), Value: value}
		check(producers[number].ProduceSync(background, first).FirstErr())
	}

	samples := make([]sample, int(float64(*rate)**seconds))
	records := make([]kgo.Record, len(samples))
	var done, failed atomic.Int64
	var firstError atomic.Value
	before := count.count.Load()
	cpu := cpuSeconds()
	// The schedule runs on its own thread, because Go's own timers wake up to a millisecond late.
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1000, 0)
	began := clock.now() + int64(50*time.Millisecond)
	for number := range samples {
		current := &samples[number]
		current.due = began + int64(float64(number)*1e9/float64(*rate))
		sleepUntil(clock, current.due)
		which := number % *connections
		record := &records[number]
		record.Topic, record.Partition, record.Value = *topic, int32(which%*partitions), value
		current.sent = clock.now()
		producers[which].Produce(background, record, func(_ *kgo.Record, err error) {
			if err == nil {
				current.acknowledged = clock.now()
			} else if failed.Add(1) == 1 {
				firstError.Store(err.Error())
			}
			done.Add(1)
		})
	}
	// A record without an acknowledgement after this time has none in the file either.
	deadline := clock.now() + int64(*drain)
	for done.Load() < int64(len(samples)) && clock.now() < deadline {
		time.Sleep(time.Millisecond)
	}
	cpu = cpuSeconds() - cpu
	write(*out, samples)
	text, _ := firstError.Load().(string)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"requests": count.count.Load() - before, "cpu_s": cpu, "error": text,
	}))
}

func newProducer(bootstrap string, linger time.Duration, bytes int, hook kgo.Hook) *kgo.Client {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(linger),
		// Without a limit that would delay the schedule.
		kgo.MaxBufferedRecords(1 << 30),
		kgo.WithHooks(hook),
	}
	// One record in each request, sent however many are unanswered. Otherwise a producer with franz-go's defaults: idempotent,
	// and five requests in flight.
	if linger == 0 {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(inFlight),
			kgo.ProducerBatchMaxBytes(int32(bytes+batchOverhead)))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	return client
}

// clock reads CLOCK_MONOTONIC, which all processes of the machine share.
type clock struct {
	origin time.Time
	base   int64
}

func newClock() clock {
	var read syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&read)), 0)
	return clock{origin: time.Now(), base: read.Nano()}
}

func (c clock) now() int64 { return c.base + int64(time.Since(c.origin)) }

func sleepUntil(clock clock, due int64) {
	for left := due - clock.now(); left > 0; left = due - clock.now() {
		rest := syscall.NsecToTimespec(left)
		_ = syscall.Nanosleep(&rest, nil)
	}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func write(path string, samples []sample) {
	bytes := make([]byte, 0, 24*len(samples))
	for _, each := range samples {
		for _, number := range [3]int64{each.due, each.sent, each.acknowledged} {
			bytes = binary.LittleEndian.AppendUint64(bytes, uint64(number))
		}
	}
	check(os.WriteFile(path, bytes, 0o600))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
