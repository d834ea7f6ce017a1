module tidemark.dev/tests/suites/spark-operator

go 1.24.1

require github.com/kubeflow/spark-operator/v2 v2.3.0
