// Command franz is franz-go with its defaults, "franz ADDRESS TOPIC GROUP NAME COUNT": see python_defaults.py.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	seeds := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...)
	topic, group, name := os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	member, err := kgo.NewClient(seeds, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic))
	check(err)
	producer, err := kgo.NewClient(seeds)
	check(err)
	defer producer.Close()

	background := context.Background()
	send := func(value string) {
		check(producer.ProduceSync(background, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
	}
	hears, produced := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(produced)
		for probing := true; probing; {
			select {
			case <-hears:
				probing = false
			case <-time.After(300 * time.Millisecond):
				send("probe")
			}
		}
		for number := range count {
			send(fmt.Sprintf("%s %d", name, number))
		}
	}()
	last := fmt.Sprintf("%s %d", name, count-1)
	for heard, first := false, true; !heard; {
		fetches := member.PollFetches(background)
		fetches.EachError(func(_ string, _ int32, err error) { check(err) })
		fetches.EachRecord(func(each *kgo.Record) {
			if first {
				close(hears)
				first = false
			}
			fmt.Println(string(each.Value))
			heard = heard || string(each.Value) == last
		})
	}
	<-produced
	check(member.CommitUncommittedOffsets(background))
	member.Close()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
