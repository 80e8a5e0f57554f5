"""`format("wheelsched-kafka")`: topics of a Kafka cluster as a Spark data source, without the JVM connector."""
