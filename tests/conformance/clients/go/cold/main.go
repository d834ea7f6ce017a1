// Command cold is franz-go that reads partition 0 of a topic from its start, "cold ADDRESS TOPIC COUNT". It prints each
// record's offset and value.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	topic := os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.ConsumePartitions(start))
	check(err)
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for seen := 0; seen < count; {
		fetches := client.PollFetches(context.Background())
		fetches.EachError(func(_ string, _ int32, err error) { check(err) })
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Fprintf(out, "%d\t%s\n", record.Offset, record.Value)
			seen++
		})
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
