import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client with its defaults, {@code Defaults ADDRESS TOPIC GROUP NAME COUNT}: see python_defaults.py. */
public final class Defaults {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String name = arguments[3];
        int count = Integer.parseInt(arguments[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        Properties ofConsumer = new Properties();
        ofConsumer.putAll(settings);
        ofConsumer.put("group.id", arguments[2]);
        CountDownLatch hears = new CountDownLatch(1);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
             var consumer = new KafkaConsumer<>(ofConsumer, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Thread producing = new Thread(() -> {
                try {
                    while (!hears.await(300, TimeUnit.MILLISECONDS)) {
                        producer.send(new ProducerRecord<>(topic, "probe")).get();
                    }
                    for (int number = 0; number < count; number++) {
                        producer.send(new ProducerRecord<>(topic, name + " " + number)).get();
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            producing.start();
            String last = name + " " + (count - 1);
            for (boolean heard = false; !heard; ) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1))) {
                    hears.countDown();
                    System.out.println(each.value());
                    heard |= each.value().equals(last);
                }
            }
            producing.join();
        }
    }
}
