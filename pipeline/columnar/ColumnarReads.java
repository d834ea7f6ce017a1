package io.tidemark.spark;

import static scala.jdk.javaapi.CollectionConverters.asJava;

import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.spark.ContextAwareIterator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomTaskMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Session extension that reads the source {@code tidemark} as columns.
 *
 * <p>Spark 4.1 copies each row of a Python source from Arrow's memory into another row, with all
 * columns, although a query may use few. With this class in {@code spark.sql.extensions} workers
 * build only the columns that a query uses, and Spark reads their Arrow batches without that copy.
 * Planning, reading and checking stay in Python, and without this class results are the same.
 */
public final class ColumnarReads extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  /** Name of the source, which is that of its tables. */
  private static final String SOURCE = "tidemark";

  /** Property of a task: the columns that its worker builds ({@code read/streaming.py}). */
  private static final String COLUMNS = "tidemark.columns";

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectColumnar(
        new AbstractFunction1<SparkSession, ColumnarRule>() {
          @Override
          public ColumnarRule apply(SparkSession session) {
            return new ColumnarRule() {
              @Override
              public Rule<SparkPlan> preColumnarTransitions() {
                return new ReadColumns();
              }
            };
          }
        });
    return BoxedUnit.UNIT;
  }

  /** Whether a plan is a scan of the source as rows. The rule sees a plan more than once. */
  static boolean isTidemark(SparkPlan plan) {
    return plan instanceof BatchScanExec
        && ((BatchScanExec) plan).scan() instanceof PythonScan
        && SOURCE.equals(((BatchScanExec) plan).table().name());
  }

  /** Rule that replaces the scans of the source in a physical plan. */
  private static final class ReadColumns extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      return rewrite(plan, plan.outputSet());
    }

    /** Replaces the scans of a plan of which {@code used} columns are used above it. */
    static SparkPlan rewrite(SparkPlan plan, AttributeSet used) {
      // Spark adds the transition from columns to rows after this rule.
      if (isTidemark(plan)) {
        BatchScanExec scan = (BatchScanExec) plan;
        return new BatchScanExec(
            scan.output(),
            new Columns(scan.scan(), scan.batch(), names(scan, used)),
            scan.runtimeFilters(),
            scan.ordering(),
            scan.table(),
            scan.spjParams());
      }
      return (SparkPlan)
          plan.mapChildren(
              new AbstractFunction1<SparkPlan, SparkPlan>() {
                @Override
                public SparkPlan apply(SparkPlan child) {
                  return rewrite(child, usedOf(plan, child, used));
                }
              });
    }

    /** Columns of a child that are used. Spark puts a projection above a scan with more columns. */
    static AttributeSet usedOf(SparkPlan plan, SparkPlan child, AttributeSet used) {
      if (plan instanceof ProjectExec) {
        return plan.references();
      }
      if (plan instanceof FilterExec) {
        return plan.references().$plus$plus(used);
      }
      return child.outputSet();
    }

    private static String names(SparkPlan scan, AttributeSet used) {
      return asJava(scan.output()).stream()
          .filter(used::contains)
          .map(Attribute::name)
          .collect(Collectors.joining(","));
    }
  }

  /** Scan whose batches are read as columns; everything else is Spark's own scan of the source. */
  private static final class Columns implements Scan, SupportsMetadata {
    private final Scan rows;
    private final Batch planned;
    private final String columns;

    /** {@code planned}: the tasks of the scan, so that they are not planned again. */
    Columns(Scan rows, Batch planned, String columns) {
      this.rows = rows;
      this.planned = planned;
      this.columns = columns;
    }

    @Override
    public StructType readSchema() {
      return rows.readSchema();
    }

    @Override
    public String description() {
      return rows.description() + " columns [" + columns + "]";
    }

    @Override
    public Map<String, String> getMetaData() {
      return ((SupportsMetadata) rows).getMetaData();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return rows.supportedCustomMetrics();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
      return rows.reportDriverMetrics();
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
      return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Batch toBatch() {
      return new Batch() {
        @Override
        public InputPartition[] planInputPartitions() {
          return planned.planInputPartitions();
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
          return new Factory(
              (PythonPartitionReaderFactory) planned.createReaderFactory(), columns);
        }
      };
    }
  }

  /**
   * Factory of readers on executors. {@code rows}: Spark's own, which has what a worker needs. {@code
   * columns}: names of the columns that the query uses.
   */
  private static final class Factory implements PartitionReaderFactory {
    private final PythonPartitionReaderFactory rows;
    private final String columns;

    Factory(PythonPartitionReaderFactory rows, String columns) {
      this.rows = rows;
      this.columns = columns;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return rows.createReader(partition);
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new Reader(
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source,
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID,
          ((PythonInputPartition) partition).pickedPartition(),
          columns);
    }
  }

  /** Arrow batches that a Python worker returns for one task. */
  private static final class Reader implements PartitionReader<ColumnarBatch> {
    private final Map<String, SQLMetric> metrics = PythonCustomMetric.pythonMetrics();
    private final Iterator<ColumnarBatch> batches;
    private final List<String> columns;

    Reader(
        UserDefinedPythonDataSource source,
        byte[] function,
        StructType schema,
        Option<String> artifacts,
        Option<String> session,
        byte[] partition,
        String columns) {
      this.columns = Arrays.asList(columns.split(","));
      // Spark's own evaluator has the worker's settings; only its conversion to rows is not used.
      MapInBatchEvaluatorFactory worker =
          source.createMapInBatchEvaluatorFactory(
              function,
              "read_from_data_source",
              UserDefinedPythonDataSource.readInputSchema(),
              schema,
              metrics,
              artifacts,
              session);
      TaskContext context = TaskContext.get();
      // The worker receives the properties of its task when it starts.
      context.getLocalProperties().setProperty(COLUMNS, columns);
      // The worker receives one struct with one column, the pickled partition.
      InternalRow row = new GenericInternalRow(new Object[] {partition});
      InternalRow struct = new GenericInternalRow(new Object[] {row});
      Iterator<InternalRow> rows = single(struct);
      batches =
          new ArrowPythonRunner(
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
                  new int[][] {{0}},
                  new StructType()
                      .add("struct", UserDefinedPythonDataSource.readInputSchema()),
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
                  metrics,
                  artifacts,
                  session,
                  worker
                      .org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$profiler)
              .compute(
                  new ContextAwareIterator<>(context, single(rows)),
                  context.partitionId(),
                  context);
    }

    private static <T> Iterator<T> single(T item) {
      return scala.collection.Iterator$.MODULE$.single(item);
    }

    @Override
    public boolean next() {
      return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = batches.next();
      // The worker's batches have one struct, whose children are the columns.
      ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
      StructField[] fields = ((StructType) struct.dataType()).fields();
      // A worker builds only the columns that were requested of it; the others have no type.
      for (StructField field : fields) {
        if (field.dataType() instanceof NullType && columns.contains(field.name())) {
          throw new IllegalStateException(
              "the Python worker did not return the column " + field.name() + ", which is used");
        }
      }
      ColumnVector[] vectors = new ColumnVector[fields.length];
      Arrays.setAll(vectors, struct::getChild);
      // Spark frees a batch after its last row, but the runner reads the next one into these vectors.
      return new ColumnarBatch(vectors, batch.numRows()) {
        @Override
        public void closeIfFreeable() {}
      };
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return asJava(metrics).entrySet().stream()
          .map(item -> new PythonCustomTaskMetric(item.getKey(), item.getValue().value()))
          .toArray(CustomTaskMetric[]::new);
    }

    @Override
    public void close() {
      // The runner frees its vectors when the task ends.
    }
  }
}
