"""`format("wheelsched-kafka")`: Kafka topics as a Spark data source, without the JVM connector."""
