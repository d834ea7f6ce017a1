// Command sarama is that client with its defaults, "sarama ADDRESS TOPIC GROUP NAME COUNT": see python_defaults.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type member struct {
	last  string
	hears chan struct{}
	first sync.Once
	leave context.CancelFunc
}

func (*member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.first.Do(func() { close(m.hears) })
			fmt.Println(string(each.Value))
			session.MarkMessage(each, "")
			if string(each.Value) == m.last {
				m.leave()
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	addresses, topic, group, name := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	check(err)
	ofProducer := sarama.NewConfig()
	ofProducer.Producer.Return.Successes = true // without it a synchronous producer is none
	producer, err := sarama.NewSyncProducer(addresses, ofProducer)
	check(err)
	consumers, err := sarama.NewConsumerGroup(addresses, group, nil)
	check(err)

	leaving, leave := context.WithCancel(context.Background())
	m := &member{last: fmt.Sprintf("%s %d", name, count-1), hears: make(chan struct{}), leave: leave}
	send := func(value string) {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
		check(err)
	}
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for probing := true; probing; {
			select {
			case <-m.hears:
				probing = false
			case <-time.After(300 * time.Millisecond):
				send("probe")
			}
		}
		for number := range count {
			send(fmt.Sprintf("%s %d", name, number))
		}
	}()
	for leaving.Err() == nil {
		if err := consumers.Consume(leaving, []string{topic}, m); err != nil && !errors.Is(err, context.Canceled) {
			log.Fatal(err)
		}
	}
	<-produced
	check(consumers.Close())
	check(producer.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
